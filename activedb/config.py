"""Settings: from arguments, then the environment (``ACTIVEDB_*``), then ``[tool.activedb]``.

The table is that of the nearest ``pyproject.toml``, in the working folder or above it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

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

__all__ = ["Settings", "mask_url"]

_PREFIX = "ACTIVEDB_"

# Greedy up to the last @, which may have been quoted since: a password may hold any character that
# somebody forgot to quote.
_IN_AUTHORITY = re.compile(r"(://[^:/?#@]*:).*(?:@|%40)", re.DOTALL)
_HAVE_SECRETS = frozenset(("url", "spark_conf", "monitor_token"))
"""Settings whose values no error shows."""
_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)  # as Spark has it
_IN_PARAMETERS = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]+)", re.IGNORECASE)


def mask_url(url: str) -> str:
    """Replace the passwords in a database URL, or in a ``key=value`` string, by ``***``."""
    return _IN_PARAMETERS.sub(r"\1***", _IN_AUTHORITY.sub(r"\1***@", url))


class Settings(BaseSettings):
    """How activedb runs; made by `load`, not changed afterwards.

    Attributes
    ----------
    url : str or None
        Database URL, ``postgresql+psycopg://…`` or ``memory://``; None for the embedded server.
        Secret: ``repr`` and ``str`` of the settings hide its password.
    db_schema : str or None
        Postgres schema to keep everything in, created when missing; None for the search path's.
    wait_s : float or None
        How long to wait, when a database is opened, for a server that is starting or recovering or
        does not answer yet; 0: not at all. None: ten seconds for a server that says that it is
        starting, and not at all if none answers.
    folder : Path
        Folder of the embedded server, relative to the working folder (in a table: to its file).
    threads : int
        Threads on which the subtransactions of all hierarchies run.
    lock_timeout_ms : int
        How long a lock request waits before it fails.
    victim_policy : str
        Who gives way in a deadlock: ``requester``, ``blocker``, ``youngest``, ``smallest
        hierarchy`` or ``least work`` (``lockmgr/README.md``, "Victims").
    lock_escalation : int or None
        Row locks that a transaction may own in one table before it gets a lock on the table
        instead, if nobody is in its way; None: as many as it needs.
    retries_max : int
        How often a deadlock victim, or a transaction that the server gave up, is run again at once.
    retry_pause_ms, retry_pause_ms_max : float
        The longest pause before the first retry, which doubles with each further one, and its
        bound; each pause is a random part of that.
    reconnect_pause_ms, reconnect_pause_ms_max : float
        The same after a lost connection; at least half of it is waited.
    restarts_max : int
        How often a rule in a top-level transaction of its own is started again, after it has been
        run `retries_max` times more in vain; then it is a dead letter.
    restart_pause_ms, restart_pause_ms_max : float
        The longest pause before the first restart, which doubles with each further one, and its
        bound; at least half of it is waited.
    cycles_max : int
        How many deferred cycles one commit point may need.
    cascade_max : int
        How deep rules may trigger rules. Where the stack of one thread has no room for more levels
        another thread goes on, so some 25 levels take a thread.
    cascade_order : str
        Whether the immediate rules that a rule triggers run inside it (``depth_first``), or wait
        for the end of all rules at its level and run beside it then (``breadth_first``).
    firings : str
        Who runs the rules that have top-level transactions of their own: ``here``, the process
        that triggers them, or ``queue``, whichever worker is free (`Database.work`). On
        ``memory://`` always here, as no other process can see it.
    quarantine_after : int
        After how many failures in a row a rule that fails alone is not run any more; 0: never.
    partials_max : int
        Occurrences that the detector of one rule keeps for later matches, unless the rule says
        another number; beyond it the oldest are forgotten, or the event is refused (``on_full``).
        0: any number; then rules evaluate common subexpressions together, which those that have a
        bound cannot.
    batch_events_max : int
        Events in one atomic batch.
    future_max_s : float
        How far ahead of this computer's clock the timestamp of an event may begin, its clock's
        error taken off. One of a stream that is further ahead becomes a dead letter, and
        `Database.signal` raises `BadEvent`. ``inf``: not checked.
    scale_out : bool
        Whether the work of a stream that Spark feeds is spread over Spark's executors, as far as it
        can be (``docs/scale-out.md``); else Spark cuts the batches and this process does the rest.
        What comes of it is the same.
    spark_master : str or None
        Where Spark runs: ``local[4]``, ``local-cluster[2,1,1024]``, ``spark://host:7077``,
        ``k8s://https://host:6443`` or ``yarn``; None: in this machine's own process.
    spark_conf : dict of str to str
        Settings of Spark beside ours, as ``{"spark.executor.memory": "4g"}``; in the environment a
        JSON object. ``repr`` and ``str`` hide values that Spark would hide.
    recording : str
        Whether ``db.history()`` tells what transactions did: ``off``, ``sampled`` or ``full``.
    recording_one_in : int
        When sampled: of how many top-level transactions one is recorded, with its inferiors.
    recording_events_max : int
        Events that are kept; for more, whole hierarchies are dropped, the oldest first.
    monitor : str
        ``on``: what the process does is kept, within a bound, and told over HTTP
        (``docs/monitoring.md``); ``off``.
    monitor_host, monitor_port : str, int
        Where that listens; 0: at any free port.
    monitor_token : SecretStr or None
        What who asks has to know. Required unless the host is a loopback address and nothing can
        be changed from outside.
    monitor_writable : bool
        Whether rules can be enabled and disabled, and open decisions made, from there.
    monitor_values : bool
        Whether keys of rows, parameters of events and messages of errors are shown there.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    url: str | None = None
    db_schema: str | None = Field(default=None, pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    wait_s: float | None = Field(default=None, ge=0, le=86_400)
    folder: Path = Path(".activedb")
    threads: int = Field(default=4, ge=1, le=256)
    lock_timeout_ms: int = Field(default=10_000, ge=1)
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
        """A token goes into a header; an error must not quote it."""
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
                f"the environment variable {_PREFIX}SPARK_CONF is no JSON object; write it as "
                '{"spark.executor.memory": "4g"}'
            )
        # Outside the except clause: what pydantic says would show the secret beside it.
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

    @property
    def of_spark(self) -> dict[str, str]:
        """What Spark's session is to be started with, for ``spark_bridge.session``."""
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
    """Read ``[tool.activedb]``; its folder is made relative to the file it stands in."""
    path = _pyproject()
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("activedb", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; correct the file") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"tool.activedb in {path} is no table; write [tool.activedb]")
    if table:
        check_trusted(path)
    if isinstance(table.get("folder"), str):
        table["folder"] = path.parent / Path(table["folder"]).expanduser()
    return table


def _explain(problem: Any, given: dict[str, Any]) -> str:
    """Say in one line what is wrong with one setting, and where it was set."""
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
