"""Settings from arguments, then the environment (``ACTIVEDB_*``), then ``[tool.activedb]``.

The table is read from the nearest ``pyproject.toml``, in the working folder or above it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast, get_args

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from activedb.errors import ConfigurationError
from activedb.trust import check_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SCHEMA_NAME", "Isolation", "Settings", "checked_isolation", "mask_url"]

Isolation: TypeAlias = Literal["locks", "serializable"]
"""Policy that keeps transactions apart: locks, or the server's SERIALIZABLE; see `Settings`."""

SCHEMA_NAME = r"^[a-z_][a-z0-9_]{0,62}$"
"""Pattern of the schemas that the setting `db_schema` can name."""

_PREFIX = "ACTIVEDB_"

# Greedy up to the last @, which may have been quoted since: a password may hold any character that
# was not quoted by mistake. The scheme, or its colon, may have been forgotten.
_IN_AUTHORITY = re.compile(r"(//[^:/?#@]*:|^[^:/?#@]*:(?!//)).*(?:@|%40)", re.DOTALL)
_HAVE_SECRETS = frozenset(("url", "spark_conf", "monitor_token"))
"""Settings whose values are not shown in errors."""
_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)  # as in Spark
_IN_PARAMETERS = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]+)", re.IGNORECASE)


def mask_url(url: str) -> str:
    """Replace the passwords in a database URL, or in a ``key=value`` string, by ``***``."""
    return _IN_PARAMETERS.sub(r"\1***", _IN_AUTHORITY.sub(r"\1***@", url))


def checked_isolation(name: str) -> Isolation:
    """Return the name of an isolation policy; raise `ConfigurationError` if there is none."""
    if name in get_args(Isolation):
        return cast("Isolation", name)
    raise ConfigurationError(f"isolation is 'locks' or 'serializable', not {name!r}")


class Settings(BaseSettings):
    """Settings of activedb; made by `load`, not changed afterwards.

    Attributes
    ----------
    url : str or None
        Database URL, ``postgresql+psycopg://…`` or ``memory://``; None for the embedded server.
        Secret: ``repr`` and ``str`` of the settings hide its password.
    db_schema : str or None
        Postgres schema for all tables, created when missing; None for the search path's.
    wait_s : float or None
        Time to wait, when a database is opened, for a server that is starting, recovering or not
        answering yet; 0: not at all. None: ten seconds for a server that reports that it is
        starting, and not at all if none answers. The first try to connect counts; a try takes at
        most ten seconds for each host, or the URL's ``connect_timeout``.
    folder : Path
        Folder of the embedded server, relative to the working folder (in a table: to its file).
    threads : int
        Threads on which the subtransactions of all hierarchies run.
    lock_timeout_ms : int
        Time that a lock request waits before it fails.
    isolation : str
        What keeps the transactions of the application and of its rules apart: ``locks`` here and at
        the server, or ``serializable``: the server's isolation level of that name, which lets them
        run on and refuses some at their commit. Both make them serializable. A transaction may have
        its own. Streams, workflows and followers always lock; so does everything on ``memory://``.
    victim_policy : str
        Choice of the victim of a deadlock: ``requester``, ``blocker``, ``youngest``, ``smallest
        hierarchy`` or ``least work`` (``lockmgr/README.md``, "Victims").
    lock_escalation : int or None
        Number of row locks that a transaction may own in one table before it gets a lock on the
        table instead, if no other transaction is in the way; None: unlimited.
    retries_max : int
        Number of immediate retries of a deadlock victim, or of a transaction that the server
        aborted.
    retry_pause_ms, retry_pause_ms_max : float
        The longest pause before the first retry, which doubles with each further one, and its
        bound; each pause is a random part of that.
    reconnect_pause_ms, reconnect_pause_ms_max : float
        The same after a lost connection; a pause is at least half of the longest one.
    restarts_max : int
        Number of restarts of a rule in a separate top-level transaction, each after the rule and
        its `retries_max` retries have failed; then it becomes a dead letter.
    restart_pause_ms, restart_pause_ms_max : float
        The longest pause before the first restart, which doubles with each further one, and its
        bound; a pause is at least half of that.
    cycles_max : int
        Upper bound on the deferred cycles of one commit point.
    cascade_max : int
        Maximum depth to which rules may trigger rules. When the stack of a thread has no room for
        more levels another thread continues, so a thread is needed for about every 25 levels.
    cascade_order : str
        Order of the immediate rules that a rule triggers: inside it (``depth_first``), or beside
        it, after all rules at its level have ended (``breadth_first``).
    firings : str
        Process that runs the rules with separate top-level transactions: ``here``, the process that
        triggers them, or ``queue``, any free worker (`Database.run_worker`). On ``memory://``
        always here, as no other process can see it.
    quarantine_after : int
        Number of failures in a row after which a rule that fails alone is no longer run; 0: never.
    partials_max : int
        Upper bound on the occurrences that the detector of one rule keeps for later matches, unless
        the rule has its own bound; beyond it the oldest are forgotten, or the event is refused
        (``on_full``). 0: unbounded; then rules evaluate common subexpressions together, which rules
        with a bound cannot.
    batch_events_max : int
        Upper bound on the events in one atomic batch.
    future_max_s : float
        How far ahead of this computer's clock the timestamp of an event may begin, after
        subtraction of the error of the event's clock. An event of a stream that is further ahead
        becomes a dead letter, and `Database.signal` raises `BadEvent`. ``inf``: not checked.
    scale_out : bool
        Whether the work of a stream that Spark feeds is spread over Spark's executors, as far as
        possible (``docs/scale-out.md``); otherwise Spark cuts the batches and this process does the
        rest. The results are the same.
    spark_master : str or None
        Spark master: ``local[4]``, ``local-cluster[2,1,1024]``, ``spark://host:7077``,
        ``k8s://https://host:6443`` or ``yarn``; None: in this machine's own process.
    spark_conf : dict of str to str
        Additional settings of Spark, as ``{"spark.executor.memory": "4g"}``; in the environment a
        JSON object. ``repr`` and ``str`` hide values that Spark would hide.
    recording : str
        Recording of transactions for ``db.admin.history()``: ``off``, ``sampled`` or ``full``.
    recording_one_in : int
        When sampled: one top-level transaction in this many is recorded, with its inferiors.
    recording_events_max : int
        Upper bound on the recorded events; beyond it, whole hierarchies are dropped, the oldest
        first.
    monitor : str
        ``on``: the activity of the process is recorded, within a bound, and served over HTTP
        (``docs/monitoring.md``); ``off``.
    monitor_host, monitor_port : str, int
        Address of the monitor's server; port 0: any free port.
    monitor_token : SecretStr or None
        Secret that the monitor's clients must send. Required unless the host is a loopback address
        and the monitor is read-only.
    monitor_writable : bool
        Whether clients of the monitor can enable and disable rules, and make open decisions.
    monitor_values : bool
        Whether the monitor shows keys of rows, parameters of events and messages of errors.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    url: str | None = None
    db_schema: str | None = Field(default=None, pattern=SCHEMA_NAME)
    wait_s: float | None = Field(default=None, ge=0, le=86_400)
    folder: Path = Path(".activedb")
    threads: int = Field(default=4, ge=1, le=256)
    lock_timeout_ms: int = Field(default=10_000, ge=1, le=2**31 - 1)  # as the server has it
    isolation: Isolation = "locks"
    victim_policy: Literal[
        "requester", "blocker", "youngest", "smallest hierarchy", "least work"
    ] = "requester"
    lock_escalation: int | None = Field(default=None, ge=1)
    retries_max: int = Field(default=10, ge=0)
    retry_pause_ms: float = Field(default=1, ge=0, le=60_000)
    retry_pause_ms_max: float = Field(default=250, ge=0, le=600_000)
    reconnect_pause_ms: float = Field(default=250, ge=0, le=60_000)
    reconnect_pause_ms_max: float = Field(default=5_000, ge=0, le=600_000)
    restarts_max: int = Field(default=20, ge=0)
    restart_pause_ms: float = Field(default=500, gt=0, le=600_000)
    restart_pause_ms_max: float = Field(default=30_000, gt=0, le=3_600_000)
    cycles_max: int = Field(default=100, ge=1)
    cascade_max: int = Field(default=32, ge=1)
    cascade_order: Literal["depth_first", "breadth_first"] = "depth_first"
    firings: Literal["here", "queue"] = "here"
    quarantine_after: int = Field(default=10, ge=0)
    partials_max: int = Field(default=1_000_000, ge=0)
    batch_events_max: int = Field(default=2_000, ge=1)
    future_max_s: float = Field(default=60.0, ge=0, allow_inf_nan=True)
    scale_out: bool = False
    spark_master: str | None = Field(default=None, min_length=1)
    spark_conf: dict[str, str] = Field(default_factory=dict)
    recording: Literal["off", "sampled", "full"] = "off"
    recording_one_in: int = Field(default=100, ge=1)
    recording_events_max: int = Field(default=100_000, ge=1)
    monitor: Literal["off", "on"] = "off"
    monitor_host: str = Field(default="127.0.0.1", min_length=1)
    monitor_port: int = Field(default=0, ge=0, le=65_535)
    monitor_token: SecretStr | None = Field(default=None, min_length=16)
    monitor_writable: bool = False
    monitor_values: bool = False

    @field_validator("monitor_token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        """Check that the token can be sent in a header; the error must not quote it."""
        text = "" if token is None else token.get_secret_value()
        if not (text.isascii() and text.isprintable()) or text != text.strip():
            raise ValueError("use printable ASCII characters, and no space at either end")
        return token

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings; an override that is None counts as not given.

        Raises
        ------
        ConfigurationError
            A value is wrong, or a key is unknown; the message says where it was set.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            problems = "; ".join(_explain(problem, given) for problem in error.errors())
        except SettingsError:
            problems = (
                f"the environment variable {_PREFIX}SPARK_CONF is not a JSON object; write it as "
                '{"spark.executor.memory": "4g"}'
            )
        # Outside the except clause: pydantic's error would show the secret beside it.
        raise ConfigurationError(problems)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the table of ``pyproject.toml`` after arguments and environment."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _table())

    def check_recordable(self, isolation: Isolation) -> None:
        """Raise `ConfigurationError` if transactions are recorded that this policy keeps apart.

        It is not for ``memory://``, where locks keep everything apart.
        """
        if isolation == "serializable" and self.recording != "off":
            raise ConfigurationError(
                "a recording shows the order in which locks are granted, and "
                "isolation='serializable' has none: use isolation='locks', or recording='off'"
            )

    @property
    def of_spark(self) -> dict[str, str]:
        """Settings for Spark's session, to be passed to ``spark_bridge.session``."""
        master = {} if self.spark_master is None else {"spark.master": self.spark_master}
        return self.spark_conf | master

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if name == "url" and value is not None:
                yield name, mask_url(value)
            elif name == "spark_conf":
                yield name, {key: _masked(key, text) for key, text in value.items()}
            else:
                yield name, value


def _masked(name: str, value: str) -> str:
    return "***" if _SECRET.search(name) else mask_url(value)


def _pyproject() -> Path | None:
    """Return the nearest ``pyproject.toml`` at or above the working folder."""
    here = Path.cwd()
    paths = (folder / "pyproject.toml" for folder in (here, *here.parents))
    return next((path for path in paths if path.is_file()), None)


def _table() -> dict[str, Any]:
    """Read ``[tool.activedb]``; its folder is made relative to the file that contains the table."""
    path = _pyproject()
    if path is None:
        return {}
    try:
        tools = _parsed(path.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; correct the file") from error
    table = tools.get("activedb", {}) if isinstance(tools, dict) else tools
    if not isinstance(table, dict):
        raise ConfigurationError(f"tool.activedb in {path} is not a table; write [tool.activedb]")
    if table:
        check_trusted(path)
    if not isinstance(table.get("folder"), str):
        return table
    try:
        folder = path.parent / Path(table["folder"]).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(f"folder in {path}: {error}; name another one") from error
    return {**table, "folder": folder}


@lru_cache(maxsize=1)
def _parsed(text: str) -> dict[str, Any]:
    """Return the contents of a TOML file; the next database is opened beside the same one."""
    return tomllib.loads(text)


def _explain(problem: Any, given: dict[str, Any]) -> str:
    """Describe in one line what is wrong with one setting, and where it was set."""
    name = str(problem["loc"][0])
    if name in given:
        place = "in an argument"
    elif name in Settings.model_fields and os.environ.get(f"{_PREFIX}{name.upper()}"):
        place = f"in the environment variable {_PREFIX}{name.upper()}"
    else:
        place = f"in [tool.activedb] of {_pyproject()}"
    if problem["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0.0)[0]
        return f"unknown setting {name!r} {place}; did you mean {nearest!r}?"
    shown = "" if name in _HAVE_SECRETS else f" {str(problem['input'])[:80]!r}"
    return f"wrong value{shown} of {name} {place}: {problem['msg']}"
