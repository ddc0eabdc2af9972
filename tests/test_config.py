from __future__ import annotations

import math
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from activedb.config import Settings, mask_url
from activedb.errors import ConfigurationError

URL = "postgresql+psycopg://ann:s3cret@db.example:5432/shop"


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, without the user's own settings."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ACTIVEDB_{name.upper()}", raising=False)
    (tmp_path / "pyproject.toml").write_text("[project]\n")  # hides those above
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_settings_without_any_source_are_the_defaults() -> None:
    assert Settings.load().model_dump() == {
        "url": None,
        "db_schema": None,
        "folder": Path(".activedb"),
        "wait_s": None,
        "threads": 4,
        "lock_timeout_ms": 10_000,
        "isolation": "locks",
        "victim_policy": "requester",
        "lock_escalation": None,
        "retries_max": 10,
        "retry_pause_ms": 1.0,
        "retry_pause_ms_max": 250.0,
        "reconnect_pause_ms": 250.0,
        "reconnect_pause_ms_max": 5_000.0,
        "restarts_max": 20,
        "restart_pause_ms": 500.0,
        "restart_pause_ms_max": 30_000.0,
        "cycles_max": 100,
        "cascade_max": 32,
        "cascade_order": "depth_first",
        "firings": "here",
        "quarantine_after": 10,
        "partials_max": 1_000_000,
        "batch_events_max": 2_000,
        "future_max_s": 60.0,
        "scale_out": False,
        "spark_master": None,
        "spark_conf": {},
        "recording": "off",
        "recording_one_in": 100,
        "recording_events_max": 100_000,
        "monitor": "off",
        "monitor_host": "127.0.0.1",
        "monitor_port": 0,
        "monitor_token": None,
        "monitor_writable": False,
        "monitor_values": False,
    }


def test_settings_from_several_sources_prefer_argument_then_environment_then_table(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "[tool.activedb]\nthreads = 2\nretries_max = 2\ncycles_max = 2\n"
    (working_folder / "pyproject.toml").write_text(table)
    monkeypatch.setenv("ACTIVEDB_THREADS", "3")
    monkeypatch.setenv("ACTIVEDB_RETRIES_MAX", "3")
    settings = Settings.load(threads=5, retries_max=None)
    assert (settings.threads, settings.retries_max, settings.cycles_max) == (5, 3, 2)


def test_settings_table_above_the_working_folder_is_found(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (working_folder / "pyproject.toml").write_text('[tool.activedb]\nfolder = "state/db"\n')
    below = working_folder / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert Settings.load().folder == working_folder / "state" / "db"


def test_settings_empty_environment_variable_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", "")
    assert Settings.load().url is None


def test_settings_loaded_cannot_be_changed() -> None:
    settings = Settings.load()
    with pytest.raises(ValidationError, match="frozen"):
        settings.threads = 8


def test_settings_with_a_misspelt_key_name_it_and_the_nearest(working_folder: Path) -> None:
    path = working_folder / "pyproject.toml"
    path.write_text("[tool.activedb]\nlock_timeout = 5\n")
    with pytest.raises(ConfigurationError) as raised:
        Settings.load()
    assert str(raised.value) == (
        f"unknown setting 'lock_timeout' in [tool.activedb] of {path}; "
        "did you mean 'lock_timeout_ms'?"
    )


@pytest.mark.parametrize("text", ["0", "257", "four", "4.5"])
def test_settings_with_a_wrong_environment_variable_say_which_in_one_line(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ACTIVEDB_THREADS", text)
    with pytest.raises(ConfigurationError) as raised:
        Settings.load()
    message = str(raised.value)
    assert message.startswith(
        f"wrong value {text!r} of threads in the environment variable ACTIVEDB_THREADS: "
    )
    assert "\n" not in message
    assert "pydantic" not in "".join(traceback.format_exception(raised.value)).lower()


def test_settings_with_a_wrong_argument_say_so() -> None:
    with pytest.raises(ConfigurationError, match="wrong value '0' of batch_events_max in an arg"):
        Settings.load(batch_events_max=0)


@pytest.mark.parametrize("text", ["-1", "nan", "never"])
def test_settings_with_a_wrong_limit_of_the_future_say_so(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ACTIVEDB_FUTURE_MAX_S", text)
    with pytest.raises(ConfigurationError, match=f"wrong value '{text}' of future_max_s"):
        Settings.load()


def test_settings_without_a_limit_of_the_future_can_be_given_everywhere(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings.load(future_max_s=math.inf).future_max_s == math.inf
    (working_folder / "pyproject.toml").write_text("[tool.activedb]\nfuture_max_s = inf\n")
    assert Settings.load().future_max_s == math.inf
    (working_folder / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setenv("ACTIVEDB_FUTURE_MAX_S", "inf")
    assert Settings.load().future_max_s == math.inf


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tool.activedb\n", "cannot read"),
        ("[tool]\nactivedb = 3\n", "is not a table"),
        ("tool = 5\n", "is not a table"),
        ('[tool.activedb]\nfolder = "~no-such-account/x"\n', "name another one"),
    ],
)
def test_settings_from_a_broken_file_name_it(working_folder: Path, content: str, said: str) -> None:
    (working_folder / "pyproject.toml").write_text(content)
    with pytest.raises(ConfigurationError, match=said) as raised:
        Settings.load()
    assert str(working_folder / "pyproject.toml") in str(raised.value)


def test_settings_shown_hide_the_password() -> None:
    settings = Settings.load(url=URL)
    assert settings.url == URL
    for shown in (repr(settings), str(settings), f"{settings}"):
        assert "s3cret" not in shown
        assert "ann:***@db.example" in shown


def test_settings_of_spark_come_from_the_environment_and_hide_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACTIVEDB_SPARK_MASTER", "yarn")
    monkeypatch.setenv("ACTIVEDB_SPARK_CONF", '{"spark.executor.memory": "4g", "x.password": "p4"}')
    settings = Settings.load()
    assert settings.of_spark == {
        "spark.executor.memory": "4g",
        "x.password": "p4",
        "spark.master": "yarn",
    }
    assert "4g" in repr(settings)
    assert "p4" not in repr(settings)


def test_settings_of_spark_that_are_no_json_say_how_to_write_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACTIVEDB_SPARK_CONF", "spark.executor.memory=4g")
    with pytest.raises(ConfigurationError, match="ACTIVEDB_SPARK_CONF is not a JSON object"):
        Settings.load()


def test_settings_with_a_wrong_url_do_not_show_it() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Settings.load(url=[URL])
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (URL, "postgresql+psycopg://ann:***@db.example:5432/shop"),
        ("postgresql://ann:p@ss:w/rd?x@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://:s3cret@db/shop", "postgresql://:***@db/shop"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        ("postgresql://db:5432/shop?sslmode=require", "postgresql://db:5432/shop?sslmode=require"),
        ("postgresql:///shop?password=s3cret&x=1", "postgresql:///shop?password=***&x=1"),
        ("host=db password='s3 \\'cret' user=ann", "host=db password=*** user=ann"),
        ("memory://", "memory://"),
        ("ann:s3cret@db.example/shop", "ann:***@db.example/shop"),
        ("//ann:s3cret@db.example/shop", "//ann:***@db.example/shop"),
        ("postgresql//ann:s3cret@db/shop", "postgresql//ann:***@db/shop"),
        ("db.example:5432/shop", "db.example:5432/shop"),
    ],
)
def test_mask_url_hides_the_password_and_nothing_else(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@pytest.mark.long
@given(st.text(min_size=1), st.text(st.characters(exclude_characters=":/@?#"), max_size=5))
def test_mask_url_never_shows_a_password(password: str, user: str) -> None:
    assert mask_url(f"postgresql://{user}:{password}@db/shop") == f"postgresql://{user}:***@db/shop"
