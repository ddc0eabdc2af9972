"""Social event detection: operator by operator on paper, and real tweets against a recount."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from activedb.scheduling import SerialOrder
from tests.examples.recount_social_events import Recount, recount
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

STREAMS = Path(__file__).resolve().parents[2] / "examples" / "streams"
STOPWORDS = frozenset(STREAMS.parent.joinpath("stopwords.txt").read_text("utf-8").split())
ALL = ["serial", "sei", "s2pl", "lwm", "tpg"]


@pytest.fixture
def social(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, imported as its own folder's other files are."""
    monkeypatch.syspath_prepend(STREAMS)
    return importlib.import_module("social_events")


@pytest.fixture
def state(social: ModuleType) -> ModuleType:
    """Return the module with what the operators compute."""
    return importlib.import_module("_social_state")


@pytest.fixture
def tweets_of(social: ModuleType) -> ModuleType:
    """Return the module that reads tweets."""
    return importlib.import_module("_tweets")


def id_of(ms: int, number: int = 0) -> int:
    """Return the id of the tweet with this number of a millisecond since the ids began."""
    return (ms << 22) + number


def found(social: ModuleType, posts: Sequence[Any], scheduler: Any) -> tuple[Recount, Any]:
    """Return what the example leaves in the shared tables and selects, and all versions."""
    workflow = social.Workflow(scheduler)
    events = []
    for window in social.windows_of(posts):
        events += [(e.window, e.cluster, e.grown) for e in workflow.window(window)]
    o, state = workflow.operators, workflow.state
    words = {
        word: (w.window, w.tweets, w.total, w.burst == w.window)
        for word, w in state.of(o.words).newest().items()
    }
    tweets = state.of(o.tweets).newest()
    return Recount(
        words,
        {id_: (tweet.words, tweet.window) for id_, tweet in tweets.items()},
        {id_: tweet.cluster for id_, tweet in tweets.items() if tweet.cluster is not None},
        set(state.of(o.clusters).newest()),
        events,
    ), [versions.newest() for versions in state]


# -- on paper --------------------------------------------------------------------------------------


def test_words_of_a_tweet_are_long_distinct_and_without_marks(tweets_of: ModuleType) -> None:
    words = tweets_of.words_of(
        "@abc Flood, flooding &amp; #Flood in Boston's north! http://t.co/x1 y"
    )
    assert words == ("boston", "flood", "flooding", "north")


def test_windows_follow_each_other_and_keep_a_millisecond_together(tweets_of: ModuleType) -> None:
    ids = [id_of(9), id_of(3, 1), id_of(1), id_of(3, 0), id_of(2), id_of(9)]
    posts = [tweets_of.Post(id_, str(n), "crisis", False) for n, id_ in enumerate(ids)]
    windows = [[post.text for post in window] for window in tweets_of.windows_of(posts, 3)]
    assert windows == [["1", "2", "3", "4"], ["0", "5"]]  # in the order of arrival


def test_word_mean_learns_from_windows_without_burst_and_fades_in_those_without_the_word(
    state: ModuleType,
) -> None:
    word = state.counted(None, 0)
    word = state.counted(word, 0)
    assert word == (0, 2, 0.0, 2, -1)
    assert state.counted(word, 1) == (1, 1, pytest.approx(0.4), 3, -1)
    assert state.counted(word, 3) == (3, 1, pytest.approx(0.4 * 0.8 * 0.8), 3, -1)
    assert state.counted(word._replace(burst=0), 1) == (1, 1, 0.0, 3, 0)


def test_word_bursts_if_its_tf_idf_has_grown_by_the_factor(state: ModuleType) -> None:
    known = state.Word(window=5, tweets=30, mean=10.0, total=90)
    assert state.labelled(known._replace(tweets=12, total=72), 5, 2400, 400).burst == -1
    assert state.labelled(known._replace(tweets=60, total=120), 5, 2400, 400).burst == 5


def test_tweet_goes_to_the_most_similar_cluster_of_several_the_oldest(state: ModuleType) -> None:
    first = state.merged(None, ("boston", "marathon"), 0)
    second = state.merged(None, ("flood", "river"), 0)
    clusters = {1: first, 2: second, 3: second}
    assert state.most_similar(clusters, ("river", "rises")) == 2
    assert state.most_similar(clusters, ("boston", "flood", "marathon")) == 1
    assert state.most_similar(clusters, ("nothing",)) is None
    assert state.most_similar({}, ("flood",)) is None


def test_cluster_keeps_its_most_frequent_words(
    state: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "CLUSTER_WORDS", 2)
    cluster = state.merged(state.merged(None, ("fire", "plant"), 3), ("blast", "plant"), 4)
    assert cluster.words == {"plant": 2, "blast": 1}
    assert (cluster.squares, cluster.size, cluster.grown, cluster.window) == (5, 2, 2, 4)


def test_cluster_is_an_event_if_it_grows_enough_and_rests_until_it_is_idle(
    state: ModuleType,
) -> None:
    cluster = state.Cluster({"flood": 9, "river": 3}, 90, 40, grown=20, pace=10.0, window=7)
    assert state.event_of(5, cluster, 7) == (5, 7, 20, 2.0, ("flood", "river"))
    assert state.event_of(5, cluster._replace(grown=19), 7) is None
    assert state.event_of(5, cluster._replace(grown=9, pace=0.0), 7) is None
    assert state.rested(cluster, 7) == cluster._replace(grown=0, pace=12.0)
    assert state.rested(cluster, 11) is not None
    assert state.rested(cluster, 12) is None


def test_tweet_that_comes_twice_is_registered_and_counted_once(
    social: ModuleType, tweets_of: ModuleType
) -> None:
    rows = [(id_of(1), "river rises"), (id_of(1), "river again"), (id_of(2), "the"), (id_of(3), "")]
    posts = [tweets_of.Post(id_, text, "crisis", True) for id_, text in rows]
    workflow = social.Workflow(SerialOrder())
    assert workflow.window(posts) == []
    assert (workflow.tweets, workflow.refused, workflow.dropped) == (1, 1, 2)
    assert set(workflow.state.of(workflow.operators.words).newest()) == {"river", "rises"}


def test_detections_are_measured_as_defined(social: ModuleType, tweets_of: ModuleType) -> None:
    def post(ms: int, crisis: str, is_on_topic: bool) -> Any:
        return tweets_of.Post(id_of(ms), "", crisis, is_on_topic)

    hour = 3_600_000
    early = [post(0, "flood", True), post(hour, "flood", True), post(2 * hour, "fire", False)]
    late = [
        post(3 * hour, "flood", True),
        post(4 * hour, "fire", True),
        post(5 * hour, "fire", False),
    ]
    ids = [p.id for p in early + late]
    detections = social.Detections(early + late)
    detections.window_ended(early, {ids[2]: ("smoke",)})
    detections.window_ended(late, {ids[1]: ("river", "rises")})
    detections.clustered(
        {
            ids[0]: None,
            ids[1]: ids[1],
            ids[2]: ids[2],
            ids[3]: ids[1],
            ids[4]: ids[2],
            ids[5]: ids[5],
        }
    )
    figures = detections.figures()
    assert (figures["clusters"], figures["clusters_selected"], figures["detected"]) == (3, 2, 4)
    assert figures["precision"] == 0.75
    assert figures["recall"] == 0.75
    flood, fire = detections.crises()
    assert (flood["crisis"], flood["delay_h"], flood["delay_windows"]) == ("flood", 5.0, 1)
    assert (flood["words"], flood["precision"], flood["recall"]) == (
        ["river", "rises"],
        1.0,
        0.6667,
    )
    assert flood["summit_windows_off"] == 0
    assert (fire["crisis"], fire["delay_h"], fire["first_detected"]) == ("fire", None, None)
    assert (fire["precision"], fire["recall"]) == (0.5, 1.0)


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ALL)
def test_random_tweets_arriving_in_any_order_give_the_recounted_tables(
    social: ModuleType, tweets_of: ModuleType, scheduler: str
) -> None:
    random = Random(11)
    common = [f"common{chr(97 + n)}" for n in range(20)]
    rows = []
    for number in range(1300):
        words = random.sample(common, 3)
        if number >= 420 and random.random() < 0.5:  # an event of the second window and later
            words += random.sample(["flood", "river", "bridge", "rescue"], 3)
        rows.append((id_of(number * 50 + random.randrange(100)), " ".join(words)))
    rows += random.sample(rows, 5)
    random.shuffle(rows)
    posts = [tweets_of.Post(id_, text, "crisis", True) for id_, text in rows]
    by = importlib.import_module("_running").scheduler(scheduler, 3)
    expected = recount(rows, STOPWORDS)
    assert {window for window, *_ in expected.events} >= {1}
    tables, _ = found(social, posts, by)
    assert tables == expected


# -- on real tweets --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.data
def test_two_crises_at_once_give_the_recounted_tables(
    social: ModuleType, tweets_of: ModuleType, data_folder: Path, scale: int
) -> None:
    posts = tweets_of.read_posts(
        data_folder / "crisislex", ["2013_Boston_Bombings", "2013_West_Texas_Explosion"]
    )
    last = sorted(post.id for post in posts)[min(2_800 * scale, len(posts)) - 1]
    posts = [post for post in posts if post.id <= last]
    expected = recount([(post.id, post.text) for post in posts], STOPWORDS)
    assert len(expected.events) >= 5
    tables, _ = found(social, posts, SerialOrder())
    assert tables == expected


@pytest.mark.long
@pytest.mark.data
def test_flood_on_threads_leaves_the_state_of_the_serial_order(
    social: ModuleType, tweets_of: ModuleType, data_folder: Path, scale: int
) -> None:
    posts = tweets_of.read_posts(data_folder / "crisislex", ["2013_Alberta_Floods"])
    posts = sorted(posts)[: 800 * scale]
    expected = found(social, posts, SerialOrder())
    scheduler = importlib.import_module("_running").scheduler
    for name in ALL[1:]:
        assert found(social, posts, scheduler(name, 2)) == expected, name


# -- as a command ----------------------------------------------------------------------------------


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """A data folder with one crisis of some tweets; the later ones are on-topic."""
    (tmp_path / "crisislex").mkdir()
    path = tmp_path / "crisislex" / "2020_Some_Flood.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as lines:
        rows = csv.writer(lines)
        rows.writerow(["tweet id", " tweet", " label"])
        for number in range(450):
            rows.writerow(
                [f"'{id_of(number * 1000)}'", f"word{chr(97 + number % 26)}", "off-topic"]
            )
        for number in range(450, 600):
            rows.writerow([f"'{id_of(number * 1000)}'", "river flood, bridge closed", "on-topic"])
    return tmp_path


@pytest.mark.long
def test_command_is_run_as_a_file_and_prints_one_json_object(small_data: Path) -> None:
    done = subprocess.run(
        [sys.executable, STREAMS / "social_events.py", "--json", "--scheduler", "s2pl"],
        env=os.environ | {"ACTIVEDB_DATA": str(small_data)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["tweets"], figures["registered"], figures["windows"]) == (600, 600, 2)
    (crisis,) = figures["crises"]
    assert crisis["words"] == ["bridge", "closed", "flood", "river"]
    assert crisis["recall"] == 1.0
    assert crisis["delay_h"] == round(149 / 3600, 2)
    assert crisis["delay_windows"] == 0


def test_command_shows_a_table_and_the_figures(
    social: ModuleType, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert social.main(["--data", str(small_data), "--crisis", "2020_Some_Flood"]) == 0
    shown = capsys.readouterr().out
    assert "recall: 1.0" in shown.splitlines()
    assert "delay" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--crisis", "2021_None"], "there is no file of 2021_None"),
        (["--data", "."], "there is no folder crisislex in ."),
    ],
)
def test_command_without_the_data_asked_for_exits_with_2(
    social: ModuleType,
    small_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("ACTIVEDB_DATA", str(small_data))
    assert social.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_command_on_a_row_that_is_no_tweet_exits_with_1(
    social: ModuleType, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_data / "crisislex" / "2020_Some_Flood.csv.gz"
    path.write_bytes(gzip.compress(b"tweet id, tweet, label\nnone,text,on-topic\n"))
    assert social.main(["--data", str(small_data)]) == 1
    assert "this row is not a tweet" in capsys.readouterr().err
