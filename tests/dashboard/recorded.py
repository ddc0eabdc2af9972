"""An imaginary process: states as a monitor shows them, made by a seeded generator.

``python -m tests.dashboard.recorded --port 8099`` serves a dashboard of it, to look at pages.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from activedb.errors import ConfigurationError, DecisionClosed

HOSTILE = '<img src=x onerror="window.hacked=1"> {{ 7*7 }} `${7*7}` </script><script>hacked=1'
STARTED_S = 1_770_000_000.0

_RULES = (
    ("overdraft", "update accounts.balance", "immediate", None),
    ("write_down", "update accounts.balance", "deferred", None),
    ("notify", "seq(EXIT, not SANITIZE, ENTER).same(worker).within(45)", "sequential", 3),
    ("reserve", "insert orders", "causal", None),
    ("contingency", "insert orders", "exclusive", None),
    (HOSTILE, "signal odd", "detached", None),
)


class Recorded:
    """A source whose process makes a step at each look.

    Parameters
    ----------
    seed : int
    live, ended, events : int
        Live top-level transactions, and how many end and are raised between two looks.
    writable : bool
        Whether its rules can be switched.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        live: int = 12,
        ended: int = 40,
        events: int = 30,
        writable: bool = False,
    ):
        self._random = random.Random(seed)
        self._live, self._ended, self._events = live, ended, events
        self._writable = writable
        self._enabled = {name: True for name, *_ in _RULES}
        self._seq = 0
        self._id = 100
        self._looks = 0
        self._now_s = time.time()
        self._forest: list[dict[str, Any]] = []
        self.switched: list[tuple[str, bool]] = []
        self.resolved: dict[str, list[int]] = {}

    def state(self, since: int = 0) -> dict[str, Any]:
        """The next state."""
        self._looks += 1
        self._now_s = time.time()
        self._go_on()
        recent = [self._has_ended() for _ in range(self._ended)]
        events = [self._event() for _ in range(self._events)]
        waits = [node for node in self._forest if node["waits_for"]]
        edges = [
            {
                "waiter": node["id"],
                "blocker": node["waits_for"][0],
                "kind": "lock",
                "resource": ["accounts", node["id"] % 5],
            }
            for node in waits
        ]
        return {
            "process": {
                "pid": 4711,
                "host": "ward-3",
                "version": "0.1.0",
                "url": "postgresql+psycopg://ward:***@db/ward",
                "started_s": STARTED_S,
                "now_s": self._now_s,
                "writable": self._writable,
                "values": True,
            },
            "counters": {
                "transactions_committed": self._ended * self._looks,
                "transactions_aborted": self._looks,
                "transactions_retried": self._looks // 2,
                "subtransactions_committed": 3 * self._ended * self._looks,
                "rules_fired": 2 * self._ended * self._looks,
                "rules_failed": self._looks // 5,
                "matches": 4 * self._looks,
                "partials": 42,
                "partials_dropped": 3,
                "events_waiting": 17,
            },
            "latency_s": {
                "transaction": {"p50": self._latency(), "p99": 9 * self._latency(), "count": 9},
                "rule": {"p50": self._latency() / 3, "p99": 2 * self._latency(), "count": 9},
                "commit": {"p50": 0.0002, "p99": 0.001, "count": 9},
            },
            "forest": {"total": len(self._forest), "shown": self._forest},
            "locks": {
                "total": len(self._forest),
                "shown": [
                    {
                        "id": node["id"],
                        "resource": ["accounts", node["id"] % 5],
                        "mode": "X",
                        "held": n % 3 > 0,
                    }
                    for n, node in enumerate(self._forest)
                    if not node["waits_for"]
                ],
                "queue": [
                    {"id": each["waiter"], "resource": each["resource"], "mode": "S", "upgrade": 0}
                    for each in edges
                ],
                "edges": edges,
            },
            "deadlocks": [
                {
                    "n": n,
                    "at_s": self._now_s - 30 * n,
                    "victim": 13,
                    "ids": [11, 12, 13],
                    "resources": [["accounts", 1], ["accounts", 2], ["orders", HOSTILE]],
                }
                for n in (1, 2)
            ],
            "rules": [self._rule(n, *rule) for n, rule in enumerate(_RULES)],
            "streams": [
                {
                    "name": "ward",
                    "events": 20_000 + self._looks,
                    "late": 12,
                    "dead": 2,
                    "undecided": 3,
                    "waiting": 17,
                    "batches": 40,
                    "punctuation_s": self._now_s - 21,
                    "behind_s": 21.0,
                }
            ],
            "recent": recent,
            "events": events,
            "last_seq": self._seq,
            "skipped": 0,
        }

    def transaction(self, id: int) -> dict[str, Any] | None:
        """A story that has everything in it."""
        if id < 10:
            return None
        steps = [
            ("began", "it began", None, None, None),
            ("event", "update of accounts raised overdraft, write_down", None, None, None),
            ("lock asked", "asks for accounts / 7", ["accounts", 7], "X", None),
            ("lock waited", "waits for 12, which holds it", ["accounts", 7], "X", 12),
            ("lock granted", "after 14 ms", ["accounts", 7], "X", None),
            ("wrote", "updated accounts / 7", ["accounts", 7], None, None),
            ("spawned", f"rule {HOSTILE}", None, None, id + 1),
            ("child ended", "its child was aborted", None, None, id + 1),
            ("aborted", "its rule failed", None, None, None),
        ]
        return {
            "id": id,
            "parent": 10,
            "top": 10,
            "label": "transfer",
            "path": "transfer / overdraft",
            "rule": "overdraft",
            "coupling": "immediate",
            "state": "aborted",
            "began_s": STARTED_S,
            "ended_s": STARTED_S + 0.05,
            "thread": "activedb-2",
            "error": f"RuleFailed: rule overdraft failed: {HOSTILE}",
            "why": "Its rule overdraft failed, and an immediate rule takes its parent with it.",
            "tries": 2,
            "steps": [
                {
                    "at_s": STARTED_S + 0.005 * n,
                    "what": what,
                    "text": text,
                    "resource": resource,
                    "mode": mode,
                    "other": other,
                }
                for n, (what, text, resource, mode, other) in enumerate(steps)
            ],
            "children": [
                {
                    "seq": n,
                    "id": id + n,
                    "top": 10,
                    "parent": id,
                    "label": "",
                    "rule": "write_down" if n % 2 else None,
                    "coupling": "deferred" if n % 2 else None,
                    "state": "aborted" if n == 1 else "committed",
                    "began_s": STARTED_S + 0.006 * n,
                    "ended_s": STARTED_S + 0.006 * n + 0.01,
                    "error": "RuleFailed" if n == 1 else None,
                }
                for n in range(1, 6)
            ],
            "writes": [{"table": "accounts", "key": 7, "kind": "update"}],
        }

    def deadlock(self, n: int) -> dict[str, Any] | None:
        """Three transactions in a circle."""
        if n not in (1, 2):
            return None
        edges: list[dict[str, Any]] = [
            {"waiter": 11, "blocker": 12, "resource": ["accounts", 1], "mode": "X"},
            {"waiter": 12, "blocker": 13, "resource": ["accounts", 2], "mode": "S"},
            {"waiter": 13, "blocker": 11, "resource": ["orders", HOSTILE], "mode": "X"},
        ]
        said = [
            f"{edge['waiter']} asks for {edge['resource'][0]}, which {edge['blocker']} holds"
            for edge in edges
        ]
        steps = [{"text": text, "edges": edges[: k + 1]} for k, text in enumerate(said)]
        steps.append({"text": "13 is the victim; 12 goes on", "edges": edges})
        return {
            "n": n,
            "at_s": STARTED_S,
            "victim": 13,
            "policy": "requester",
            "nodes": [
                {"id": id, "label": "transfer", "path": "transfer", "rule": None}
                for id in (11, 12, 13)
            ],
            "steps": steps,
        }

    def batches(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """Five batches of one workflow."""
        if workflow not in (None, "calls"):
            raise ConfigurationError(f"no batches of a workflow {workflow!r} are recorded")
        batches = [
            {
                "id": f"calls#{n}",
                "stream": "calls",
                "state": "partially dropped" if n == 3 else "whole",
                "transaction": None,
                "failed": {"bill#3": HOSTILE} if n == 3 else {},
            }
            for n in range(1, 6)
        ]
        row = {"id": "bill#3", "kind": "transaction", "of": "bill", "number": 3, "state": "failed"}
        trace = {"id": id, "state": "whole", "sources": [id], "before": [], "after": [row]}
        return {
            "workflows": ["calls"],
            "workflow": "calls",
            "batches": batches,
            "total": 5,
            "svg": _drawing(),
            "trace": trace if id else None,
        }

    def letters(self) -> dict[str, Any]:
        """Two dead letters."""
        return {
            "counts": {"event": 1, "rule": 1},
            "letters": [
                {
                    "source": "ward",
                    "identity": "3.14",
                    "kind": "event",
                    "error": "BadEvent",
                    "reason": HOSTILE,
                },
                {
                    "source": "rule notify",
                    "identity": "9",
                    "kind": "rule",
                    "error": "ValueError",
                    "reason": "nobody is on call",
                },
            ],
        }

    def decisions(self) -> dict[str, Any]:
        """Two decisions of two candidates each, less those that are made, and one not shown."""
        shown = [
            {
                "id": f"d{n}",
                "rule": rule,
                "us": int(STARTED_S * 1_000_000) + n,
                "texts": [f"EXIT: EXIT {n}", f"EXIT: {HOSTILE}"],
                "why": ["ENTER may be before EXIT", HOSTILE],
            }
            for n, rule in enumerate(("notify", HOSTILE))
            if f"d{n}" not in self.resolved
        ]
        return {"total": len(shown) + 1, "decisions": shown}

    def resolve(self, id: str, chosen: Sequence[int]) -> None:
        """Decide."""
        if not self._writable:
            raise ConfigurationError("decisions cannot be made from outside")
        if id in self.resolved:
            raise DecisionClosed(f"decision {id} was decided before", decision=id)
        self.resolved[id] = list(chosen)

    def pending(self) -> dict[str, Any]:
        """One firing."""
        return {"pending": [{"firing": 1, "run": "a", "rule": "notify", "occurrence": "ENTER"}]}

    def switch(self, rule: str, enabled: bool) -> None:
        """Switch a rule."""
        if not self._writable:
            raise ConfigurationError("rules cannot be switched from outside")
        self._enabled[rule] = enabled
        self.switched.append((rule, enabled))

    def _go_on(self) -> None:
        """End some hierarchies, begin others, and let some wait."""
        kept = [node for node in self._forest if node["top"] % 4 == 0][: self._live]
        while sum(node["parent"] is None for node in kept) < self._live:
            self._id += 3
            top = self._id
            for id, parent in ((top, None), (top + 1, top), (top + 2, top + 1)):
                kept.append(
                    {
                        "id": id,
                        "parent": parent,
                        "top": top,
                        "label": "transfer" if parent is None else "",
                        "path": f"transfer/{id}",
                        "rule": None if parent is None else _RULES[id % len(_RULES)][0],
                        "coupling": None if parent is None else "immediate",
                        "state": "active",
                        "began_s": self._now_s - self._random.random(),
                        "thread": f"activedb-{id % 4}",
                        "waits_for": [],
                        "waits_since_s": None,
                        "causes": [],
                    }
                )
        tops = [node["id"] for node in kept if node["parent"] is None]
        leaves = [node for node in kept if node["id"] == node["top"] + 2]
        for n, node in enumerate(leaves):
            others = [top for top in tops if top != node["top"]]
            node["waits_for"] = [self._random.choice(others)] if n % 3 == 0 and others else []
            node["waits_since_s"] = self._now_s - 0.1 if node["waits_for"] else None
        self._forest = kept

    def _has_ended(self) -> dict[str, Any]:
        self._seq += 1
        is_bad = self._random.random() < 0.05
        return {
            "seq": self._seq,
            "id": 1_000_000 + self._seq,
            "top": 1_000_000 + self._seq,
            "parent": None,
            "label": "transfer",
            "rule": None,
            "coupling": None,
            "state": "aborted" if is_bad else "committed",
            "began_s": self._now_s - 0.003,
            "ended_s": self._now_s - self._random.random() / 500,
            "error": f"RuleFailed: {HOSTILE}" if is_bad else None,
        }

    def _event(self) -> dict[str, Any]:
        self._seq += 1
        kind = self._random.choice(("row", "row", "signal", "stream", "clock", "composite"))
        return {
            "seq": self._seq,
            "at_s": self._now_s,
            "name": HOSTILE if self._seq % 29 == 0 else "update accounts",
            "kind": kind,
            "transaction": self._id,
            "params": {"id": self._seq % 50, "balance": self._random.randrange(1000)},
        }

    def _latency(self) -> float:
        return 0.001 + 0.002 * self._random.random()

    def _rule(
        self, n: int, name: str, on: str, coupling: str, priority: int | None
    ) -> dict[str, Any]:
        fired = 0 if n == 4 else self._looks * (n + 1)
        return {
            "name": name,
            "on": on,
            "coupling": coupling,
            "condition_action": "immediate" if n % 2 else coupling,
            "priority": priority,
            "enabled": self._enabled[name],
            "quarantined": "it has failed 10 times in a row" if n == 3 else None,
            "matched": fired + 3,
            "fired": fired,
            "aborted": 2 if n == 3 else 0,
            "conditions_false": 3,
            "p50_s": self._latency(),
            "p99_s": 5 * self._latency(),
            "partials": 42 if n == 2 else 0,
            "last_fired_s": self._now_s - n if fired else None,
        }


def _drawing() -> str:
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="60" viewBox="0 0 200 60">'
        "<title>Transaction graph</title><script>top.hacked=1</script>"
        '<rect x="10" y="10" width="60" height="28" fill="#eef4fb" stroke="#8c959f"/>'
        '<text x="40" y="28" text-anchor="middle">calls#3</text></svg>'
    )


def main() -> None:
    """Serve a dashboard of it; arguments: port, token (``-`` for none), ``writable``."""
    from activedb.dashboard import serve

    port, token, *more = [*sys.argv[1:], "-"] if len(sys.argv) == 2 else sys.argv[1:]
    writable = "writable" in more
    serve(
        Recorded(writable=writable),
        port=int(port),
        token=None if token == "-" else token,
        writable=writable,
        on_ready=lambda address: print(address, flush=True),
    )


if __name__ == "__main__":
    main()
