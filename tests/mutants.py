"""Power of the tiers: mistakes made on purpose, and which tier's tests find them.

    python -m tests.mutants                    # every mutant, against each tier: an hour or two
    python -m tests.mutants --tier check locks # some, against one

Each mutant is one change of the source, of a rule that the package's README states. It is made in
a copy of the project; a tier *kills* it if a test of the folders that are named for it fails. The
table of ``tests/README.md`` is the output. `tests/test_mutants.py` checks that every change still
applies.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIERS = {
    "check": "not (long or spark or crash or server)",
    "test": "not (long or spark or crash)",
    "all": "",
}


@dataclass(frozen=True)
class Mutant:
    """A change of one file: the first text, which occurs once, becomes the second."""

    name: str
    what: str
    file: str
    before: str
    after: str
    folders: tuple[str, ...]


CONTROL = Mutant(
    "control",
    "nothing is changed: every tier lets it survive",
    "lockmgr/_structures.py",
    "        if self.held_tally & conflicts:",
    "        if self.held_tally & conflicts:",
    ("lockmgr", "coupling", "transactions", "store", "firing", "rules", "events", "scheduling"),
)
MUTANTS = (
    Mutant(
        "locks-held",
        "a lock is granted although another transaction holds a conflicting one",
        "lockmgr/_structures.py",
        "        if self.held_tally & conflicts:",
        "        if False and self.held_tally & conflicts:",
        ("lockmgr",),
    ),
    Mutant(
        "locks-retained",
        "a retained lock excludes no transaction",
        "lockmgr/_structures.py",
        "        if outside & conflicts:\n            for member",
        "        if False and outside & conflicts:\n            for member",
        ("lockmgr",),
    ),
    Mutant(
        "locks-released",
        "the commit of a child releases its locks",
        "lockmgr/_core.py",
        "        return self._end(transaction, heir=parent)",
        "        return self._end(transaction, heir=None)",
        ("lockmgr",),
    ),
    Mutant(
        "locks-queue",
        "a new request overtakes those that wait",
        "lockmgr/_core.py",
        "if entry.admits(transaction, mode) and not entry.waiting_tally & CONFLICTS[mode]:",
        "if entry.admits(transaction, mode):",
        ("lockmgr",),
    ),
    Mutant(
        "locks-inherited",
        "no deadlock is looked for when a parent inherits locks",
        "lockmgr/_core.py",
        "            effects += self._settle(heir, contested, inherited=True)",
        "            effects += self._sweep(contested)",
        ("lockmgr",),
    ),
    Mutant(
        "coupling-cycles",
        "a deferred cycle takes the rules that wait for the next one, too late",
        "coupling/_order.py",
        "        if self._taken >= self._bound:",
        "        if self._taken > self._bound:",
        ("coupling", "firing"),
    ),
    Mutant(
        "transactions-offer",
        "a transaction that shares its work offers its own locks, not those of its superiors",
        "activedb/transactions/_node.py",
        "            if node.is_prepared or parent is None or parent.thread != node.thread:",
        "            if True or parent is None or parent.thread != node.thread:",
        ("transactions",),
    ),
    Mutant(
        "transactions-enrolment",
        "the lock manager does not know a transaction on which another one depends",
        "activedb/transactions/_dependencies.py",
        "                self._forest.enrol(heir)\n                return heir",
        "                return heir",
        ("transactions", "firing"),
    ),
    Mutant(
        "transactions-marked",
        "a rollback-only mark just before the first lock request is lost",
        "activedb/transactions/_forest.py",
        "        if node.rollback_reason is not None:  # a mark before",
        "        if False and node.rollback_reason is not None:  # a mark before",
        ("transactions",),
    ),
    Mutant(
        "transactions-delegate",
        "the writes of a child are lost at its commit",
        "activedb/transactions/_node.py",
        "            parent.workspace.take(self.workspace)",
        "            pass",
        ("transactions",),
    ),
    Mutant(
        "transactions-rollback-only",
        "an abort does not reach the inferiors",
        "activedb/transactions/_node.py",
        "                    found.extend(node.inferiors)",
        "                    pass",
        ("transactions",),
    ),
    Mutant(
        "transactions-join",
        "a parent commits before its children have ended",
        "activedb/transactions/_node.py",
        "            if self.children:\n                self.join()\n"
        "            if self.inferiors:",
        "            if self.inferiors:",
        ("transactions",),
    ),
    Mutant(
        "transactions-retry",
        "a deadlock is retried although the cycle would recur",
        "activedb/transactions/_retries.py",
        "            return False  # the cycle would recur: a superior has to retry",
        "            pass",
        ("transactions", "firing"),
    ),
    Mutant(
        "transactions-outcome",
        "work is repeated although its commit may have succeeded",
        "activedb/transactions/_retries.py",
        "if isinstance(error, ConnectionLost) and (inside or error.committed is not False):",
        "if isinstance(error, ConnectionLost) and inside:",
        ("transactions", "store", "histories"),
    ),
    Mutant(
        "store-row-locks",
        "of several rows that are written, the server locks each only for reading",
        "activedb/store/sql/_tables.py",
        "self.exclusive_select = self._select_by_key().with_for_update(key_share=True)",
        "self.exclusive_select = self._select_by_key().with_for_update(read=True)",
        ("transactions", "histories"),
    ),
    Mutant(
        "store-deletes",
        "deleted rows are not flushed",
        "activedb/store/flush/_write_set.py",
        "    steps: list[_Step] = [(_deleted, groups[each].gone) for each in reversed(order)]",
        "    steps: list[_Step] = []",
        ("store", "transactions"),
    ),
    Mutant(
        "firing-withdraw",
        "an abort leaves the occurrences that it has fed in the detectors",
        "activedb/firing/_feeding.py",
        "        fed, context.fed = context.fed, []\n        self.withdraw(fed)",
        "        context.fed = []",
        ("firing", "rules"),
    ),
    Mutant(
        "firing-record",
        "sequential and causal rules are not recorded with the commit",
        "activedb/firing/_triggering.py",
        "            self._queue.record(t, context.firings)",
        "            pass",
        ("firing",),
    ),
    Mutant(
        "firing-deferred",
        "deferred rules run at the event",
        "activedb/firing/_triggering.py",
        "            self.contexts.defer(t, deferred)",
        "            immediate = [*deferred, *immediate]",
        ("firing",),
    ),
    Mutant(
        "firing-priority",
        "rules triggered together ignore their priorities",
        "activedb/firing/_runner.py",
        "                priority=lambda item: item.rule.priority,",
        "                priority=lambda item: None,",
        ("firing",),
    ),
    Mutant(
        "events-order",
        "equal times are ordered",
        "activedb/events/_occurrence.py",
        "    if a.high_us < b.low_us:\n        return True",
        "    if a.high_us <= b.low_us:\n        return True",
        ("events",),
    ),
    Mutant(
        "events-window",
        "a window ends a microsecond late",
        "activedb/events/detection/_combination.py",
        "        self.window_us = expression.window_us",
        "        self.window_us = expression.window_us and expression.window_us + 1",
        ("events",),
    ),
    Mutant(
        "scheduling-reads",
        "a TPG has no dependency on what an operation only reads",
        "activedb/scheduling/tpg/_planning.py",
        "        kind = SOURCE if targets else READ",
        "        kind = READ",
        ("scheduling",),
    ),
    Mutant(
        "streams-ledger",
        "a batch that has taken effect is processed again",
        "activedb/streams/_run.py",
        "        self.check_continues(batch.query_id, batch.batch_id, batch.continues)",
        "        pass",
        ("streams", "spark_bridge"),
    ),
)


def copied(folder: Path) -> Path:
    """Copy the project, without what is built and downloaded."""
    target = folder / "project"
    names = shutil.ignore_patterns(
        ".venv", ".git", ".*_cache", "__pycache__", ".activedb", ".hypothesis", "dist", "site"
    )
    shutil.copytree(ROOT, target, ignore=names)
    return target


def is_killed(mutant: Mutant, tier: str, project: Path) -> tuple[bool, float]:
    """Run a tier's tests of the mutant's folders; return whether one failed, and the seconds."""
    file = project / mutant.file
    source = file.read_text(encoding="utf-8")
    assert source.count(mutant.before) == 1, mutant.name
    file.write_text(source.replace(mutant.before, mutant.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "2"]
    command += ["-m", TIERS[tier]] if TIERS[tier] else []
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *(f"tests/{folder}" for folder in mutant.folders)],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project), "ACTIVEDB_TEST_PATIENCE": "0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(source, encoding="utf-8")
    assert done.returncode in (0, 1, 2), done.stdout[-2_000:] + done.stderr[-2_000:]
    killers = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    print(f"  {mutant.name}, {tier}: {killers or 'survives'}", file=sys.stderr, flush=True)
    return done.returncode != 0, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", help="beginnings of the names of mutants")
    parser.add_argument("--tier", choices=TIERS, help="against one tier")
    options = parser.parse_args()
    names = tuple(options.names)
    chosen = [m for m in (CONTROL, *MUTANTS) if not names or m.name.startswith(names)]
    tiers = [options.tier] if options.tier else list(TIERS)
    print(f"| mutant | {' | '.join(tiers)} |")
    print(f"|---|{'---|' * len(tiers)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        project = copied(Path(folder))
        for mutant in chosen:
            cells: list[str] = []
            for tier in tiers:
                if any(cell.startswith("killed") for cell in cells):
                    cells.append("killed")  # by the tests that it shares with the tier before
                    continue
                killed, seconds = is_killed(mutant, tier, project)
                cells.append(f"{'killed' if killed else 'survives'} ({seconds:.0f} s)")
            print(f"| {mutant.name}: {mutant.what} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
