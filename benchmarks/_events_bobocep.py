"""BoboCEP, a Python engine for complex events, as a peer if it is installed.

Only its decider is driven, without its threads and the queues between them. It supports neither
keys nor windows: both are written as predicates, which every run evaluates for every event. It
continues with the next event that fits, so our pattern selects next; both must find the same number
of matches. There are few workers, so that there are few runs.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from activedb.events import Occurrence
from benchmarks._events_single import single_s
from benchmarks._events_streams import WINDOW_S, Events, seq3
from benchmarks._nested_parts import Figure

__all__ = ["BesideBoboCEP", "BoboCEP"]


class BoboCEP:
    """The three steps as a pattern of BoboCEP."""

    name = "BoboCEP"

    def __init__(self, engine: Any, event: Any, phenomena: Any, patterns: Any, ids: Any):
        def is_a(name: str) -> Any:
            def of(worker_event: Any, history: Any) -> bool:
                o = worker_event.data
                first = history.first()
                return o.name == name and (
                    first is None or first.data.params["worker"] == o.params["worker"]
                )

            return of

        def is_over(worker_event: Any, history: Any) -> bool:
            o, first = worker_event.data, history.first().data
            if o.us > first.us + 1_000_000 * WINDOW_S:
                return True
            is_sanitized = o.name == "SANITIZE" and o.params["worker"] == first.params["worker"]
            return is_sanitized and not history.group("b")

        builder = patterns.BoboPatternBuilder("seq3")
        for name, group in (("EXIT", "a"), ("ENTER", "b"), ("TOUCH", "c")):
            builder.followed_by(is_a(name), group)
        builder.haltcondition(is_over)
        phenomenon = phenomena.BoboPhenomenon("seq3", [builder.generate()])
        unique = ids.BoboGenEventIDUnique
        self._decider = engine.BoboDecider([phenomenon], unique(), unique(), max_cache=0)
        self._decider.subscribe(self)
        self._event = event.BoboEventSimple
        self._matches = 0

    @classmethod
    def open(cls) -> BoboCEP | None:
        """Return a new instance; print to standard error and return None if it is not installed."""
        try:
            return cls(
                importlib.import_module("bobocep.cep.engine.decider.decider"),
                importlib.import_module("bobocep.cep.event.simple"),
                importlib.import_module("bobocep.cep.phenom.phenom"),
                importlib.import_module("bobocep.cep.phenom.pattern.builder"),
                importlib.import_module("bobocep.cep.gen.event_id"),
            )
        except ModuleNotFoundError:
            print("no bobocep: pip install '.[bench]'", file=sys.stderr)
            return None

    def on_decider_update(
        self, completed: list[Any], halted: list[Any], updated: list[Any], local: bool
    ) -> None:
        """Count the complete matches; BoboCEP calls this."""
        self._matches += len(completed)

    def feed(self, events: list[Occurrence]) -> int:
        """Feed events; return the number of matches."""
        decider, event = self._decider, self._event
        for number, o in enumerate(events):
            decider.on_receiver_update(event(str(number), o.us, o))
            decider.update()
        return self._matches


class BesideBoboCEP:
    """One run: the three steps, selecting next, one event at a time."""

    def __init__(self, events: Events):
        self._events = events.occurrences()
        self._is_there = BoboCEP.open() is not None

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        count = len(self._events)
        taken_s, matches = single_s(seq3().selecting("next"), self._events)
        peer = BoboCEP.open() if self._is_there else None
        if peer is None:
            return {"seq3_next_single_per_s": Figure(count / taken_s, "events/s")}
        started_s = time.process_time()
        their_matches = peer.feed(self._events)
        their_rate = count / (time.process_time() - started_s)
        assert their_matches == matches, f"BoboCEP finds {their_matches}, we {matches}"
        figure = Figure(count / taken_s, "events/s", BoboCEP.name, their_rate)
        return {"seq3_next_single_per_s": figure}
