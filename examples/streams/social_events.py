"""Events in 60,082 tweets of six crises, found by clustering tweets with words that burst.

This is online social event detection (Mao et al., section 8.6.1) on the tweets of CrisisLexT6
(github.com/sajao/CrisisLex), in the order of time. It has three shared tables and six operators::

    tweets                                                                   events
      │                                                                        ▲
      ▼                                                                        │
    Tweet ───► Word ═══► Trend ──────► Similarity ──► Cluster ══════════► Event
    Registrant Updater   Calculator    Calculator     Updater             Selector
      │ write    │ write   │ write,      │ read         │ write             │ read,
      ▼          ▼         ▼ then read   ▼              ▼                   ▼ write
    [Tweet]    [Word]    [Word]        [Cluster]      [Cluster], [Tweet]  [Cluster]

A window lies between two punctuations: 400 tweets. An operator is a program (the Similarity
Calculator and the Cluster Updater are one program). It gets the outputs of the operator before it,
and takes the events of the window in any order. At ``══►`` processing waits until the window is
complete, so that no burst keyword is overlooked. Derived events are therefore dated just after the
window's last tweet: first the events of the Word Updater, a microsecond later the events of the
Trend Calculator, and so on.

Tweet Registrant
    enters the distinct words of a tweet, without stopwords and words of less than four letters. A
    tweet that is registered already aborts; the files contain four tweets twice. A tweet without
    words is dropped.
Word Updater
    counts the tweet for each of its words, all in one s-transaction.
Trend Calculator
    labels the words of at least ``BURST_TWEETS`` tweets of the window as *burst keywords* if their
    TF-IDF is ``BURST_GROWTH`` times the earlier one. TF is the number of the window's tweets with
    the word; for the earlier value, its mean before the burst. IDF is log(1 + tweets / tweets with
    the word). The mean does not change while a word bursts. Tweets with a burst keyword are passed
    on.
Similarity Calculator
    finds the cluster whose words are most similar to the tweet's words (cosine).
Cluster Updater
    merges the tweet into that cluster, or into a new one if none has a cosine of ``SIMILARITY``,
    and enters the cluster into Tweet. It shares an s-transaction with the Similarity Calculator,
    because no other tweet may come between the two: it could be the first of the same cluster.
Event Selector
    selects as events the clusters that got at least ``EVENT_TWEETS`` tweets in the window, and
    ``EVENT_GROWTH`` times their earlier mean. It removes clusters without a tweet for ``IDLE``
    windows.

The thresholds are the same for all crises (``_social_state.py``), and no operator sees a label. In
the first window all words are new, so all frequent ones burst there. At the end the result is
measured against the labels (``_detections.py``).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _detections import Detections, show
from _running import check_whole, data_folder, exit_status, parser, progress, scheduler
from _social_state import (
    BURST_TWEETS,
    Event,
    Tweet,
    bursting,
    counted,
    event_of,
    labelled,
    merged,
    most_similar,
    registered,
    rested,
)
from _tweets import crises_of, read_posts, windows_of, words_of, written_us

from activedb.errors import StreamError
from activedb.events import Occurrence
from activedb.scheduling import (
    REMOVED,
    Access,
    Outcome,
    Program,
    ProgramRun,
    SharedState,
    SharedTable,
    View,
)

if TYPE_CHECKING:
    import argparse

    from _tweets import Post

    from activedb.scheduling import Scheduler

Params = Mapping[str, Any]


# -- the operators ---------------------------------------------------------------------------------


class Operators:
    """Shared tables, and the operators as programs over them."""

    def __init__(self) -> None:
        self.tweets = SharedTable("Tweet", key=int)
        self.words = SharedTable("Word", key=str)
        self.clusters = SharedTable("Cluster", key=int)
        self.registrant = self._registrant()
        self.word_updater = self._word_updater()
        self.trend_calculator = self._trend_calculator()
        self.cluster_updater = self._cluster_updater()
        self.event_selector = self._event_selector()

    def _registrant(self) -> Program:
        program = Program("Tweet Registrant", [self.tweets])

        @program.pre_process
        def split(type_: str, e: Params) -> Params | None:
            words = words_of(e["text"])
            return {"id": e["id"], "words": words, "window": e["window"]} if words else None

        @program.on("TWEET")
        def register(e: Params, access: Access) -> None:
            access.write(self.tweets[e["id"]], registered, e["words"], e["window"])

        @program.post_process
        def tokens(type_: str, e: Params, outcome: Outcome) -> Params | None:
            return e if outcome.committed else None

        return program

    def _word_updater(self) -> Program:
        program = Program("Word Updater", [self.words])

        @program.on("TWEET")
        def update(e: Params, access: Access) -> None:
            for word in e["words"]:
                access.write(self.words[word], counted, e["window"])

        @program.post_process
        def frequent(type_: str, e: Params, outcome: Outcome) -> list[str] | None:
            if not outcome.committed:
                return None
            pairs = zip(e["words"], outcome.results, strict=True)
            return [word for word, state in pairs if state.tweets == BURST_TWEETS] or None

        return program

    def _trend_calculator(self) -> Program:
        program = Program("Trend Calculator", [self.words])

        @program.on("WORD")
        def label(e: Params, access: Access) -> None:
            args = e["window"], e["tweets"], e["new_tweets"]
            access.write(self.words[e["word"]], labelled, *args)

        @program.on("TWEET")
        def select(e: Params, access: Access) -> None:
            refs = [self.words[word] for word in e["words"]]
            access.read(*refs, function=bursting, args=(e["words"], e["window"]))

        @program.post_process
        def with_burst_keywords(type_: str, e: Params, outcome: Outcome) -> Params | None:
            return e if type_ == "TWEET" and any(outcome.results) else None

        return program

    def _cluster_updater(self) -> Program:
        """Return the Similarity Calculator and Cluster Updater: reads all clusters, writes any."""
        program = Program("Similarity Calculator, Cluster Updater", [self.clusters, self.tweets])
        clusters = self.clusters.range()

        @program.transaction(
            "TWEET",
            reads=lambda e: [clusters],
            writes=lambda e: [clusters, self.tweets[e["id"]]],
        )
        def cluster(t: View, e: Params) -> int:
            found = t.read(clusters)
            best = most_similar(found, e["words"])
            key: int = e["id"] if best is None else best
            t.write(self.clusters[key], merged(found.get(key), e["words"], e["window"]))
            tweet = self.tweets[e["id"]]
            t.write(tweet, t.read(tweet)._replace(cluster=key))
            return key

        return program

    def _event_selector(self) -> Program:
        program = Program("Event Selector", [self.clusters])
        clusters = self.clusters.range()

        @program.transaction("WINDOW", reads=lambda e: [clusters], writes=lambda e: [clusters])
        def select(t: View, e: Params) -> list[Event]:
            window = e["window"]
            events = []
            for key, cluster in t.read(clusters).items():
                event = event_of(key, cluster, window)
                if event is not None:
                    events.append(event)
                t.write(self.clusters[key], rested(cluster, window) or REMOVED)
            return events

        @program.post_process
        def selected(type_: str, e: Params, outcome: Outcome) -> list[Event] | None:
            return outcome.results[0] if outcome.committed else None

        return program


# -- the workflow ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Workflow:
    """Operators that run one after the other, window by window, over one state.

    Attributes
    ----------
    scheduler : Scheduler
        Scheduler of all operators.
    tweets, refused, dropped : int
        Numbers of tweets that were registered, were registered already, and had no words.
    """

    scheduler: Scheduler
    operators: Operators = field(default_factory=Operators)
    tweets: int = 0
    refused: int = 0
    dropped: int = 0
    state: SharedState = field(init=False)
    _runs: dict[str, ProgramRun] = field(init=False)
    _window: int = 0

    def __post_init__(self) -> None:
        o = self.operators
        self.state = SharedState([o.tweets, o.words, o.clusters])
        programs = (
            *(o.registrant, o.word_updater, o.trend_calculator),
            *(o.cluster_updater, o.event_selector),
        )
        self._runs = {p.name: ProgramRun(p, self.scheduler, self.state) for p in programs}

    def window(self, posts: Sequence[Post]) -> list[Event]:
        """Process the tweets of one window, in any order, and return its events."""
        o = self.operators
        window, self._window = self._window, self._window + 1
        us = max(written_us(post.id) for post in posts)  # windows are 1 ms apart or more
        given = [{"id": p.id, "text": p.text, "window": window} for p in posts]
        new = self._run(o.registrant, "TWEET", given, None, us + 1)
        self.tweets += len(new)
        frequent = self._run(o.word_updater, "TWEET", new, us + 1, us + 2)
        totals = {"window": window, "tweets": self.tweets, "new_tweets": len(new)}
        words = [totals | {"word": word} for some in frequent for word in some]
        self._run(o.trend_calculator, "WORD", words, us + 2, us + 3)
        bursting = self._run(o.trend_calculator, "TWEET", new, us + 3, us + 4)
        self._run(o.cluster_updater, "TWEET", bursting, us + 4, us + 5)
        (events,) = self._run(o.event_selector, "WINDOW", [{"window": window}], us + 5, us + 6)
        return list(events)

    def _run(
        self, program: Program, type_: str, given: Iterable[Params], us: int | None, until_us: int
    ) -> list[Any]:
        """Run one operator over events, up to a punctuation, and return its outputs.

        Parameters
        ----------
        us : int or None
            Time of the events; None: the tweets' times.
        """
        events = []
        for params in given:
            at_us = written_us(params["id"]) if us is None else us
            id_ = f"{params['id']:020}" if "id" in params else params.get("word")
            events.append(Occurrence(type_, at_us / 1_000_000, params, id=id_))
        results = self._runs[program.name].feed(events, until_us)
        self.dropped += results.dropped
        aborted = check_whole(results)
        if program is self.operators.registrant:
            self.refused += len(aborted)
        elif aborted:
            raise StreamError(f"{program.name}: {aborted[0]!r} aborted: {aborted[0].outcome}")
        return results.outputs


def run(posts: Sequence[Post], by: Scheduler) -> tuple[Workflow, Detections]:
    """Detect events in tweets, in windows of 400 tweets in the order of time.

    Parameters
    ----------
    posts : sequence of Post
        Tweets in any order.
    by : Scheduler

    Returns
    -------
    Workflow, Detections
        The final state, and the detected events.
    """
    workflow = Workflow(by)
    detections = Detections(posts)
    with progress("tweets", len(posts)) as advance:
        for window in windows_of(posts):
            events = workflow.window(window)
            detections.window_ended(window, {event.cluster: event.words for event in events})
            advance(len(window))
    tweets: dict[Any, Tweet] = workflow.state.of(workflow.operators.tweets).newest()
    detections.clustered({id_: tweet.cluster for id_, tweet in tweets.items()})
    return workflow, detections


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--data", type=Path, metavar="DIR", help="the folder that holds the folder crisislex"
    )
    options.add_argument(
        "--crisis",
        action="append",
        metavar="NAME",
        help="take only the file of this name, such as 2013_Alberta_Floods; may be given again",
    )
    return exit_status(_command, options.parse_args(arguments))


def _command(options: argparse.Namespace) -> int:
    folder = data_folder(options.data, "crisislex")
    posts = read_posts(folder, options.crisis or crises_of(folder))
    began_s = time.perf_counter()
    workflow, detections = run(posts, scheduler(options.scheduler, options.threads))
    seconds = time.perf_counter() - began_s
    figures = {
        "scheduler": options.scheduler,
        "tweets": len(posts),
        "registered": workflow.tweets,
        "registered_already": workflow.refused,
        "without_words": workflow.dropped,
        **detections.figures(),
        "seconds": round(seconds, 2),
        "tweets_per_s": round(len(posts) / seconds),
    }
    if options.json:
        print(json.dumps(figures | {"crises": detections.crises()}))
    else:
        show(figures, detections.crises())
    return 0


if __name__ == "__main__":
    sys.exit(main())
