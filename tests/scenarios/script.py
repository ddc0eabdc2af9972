"""The language of the scenarios: readable steps with what they cause, replayed.

A file begins with comments that say what it shows and what that serves. Then comes the setting,
then one step per line, ``->`` before what it causes; what would make a line too long is told on
lines of its own::

    # A writer waits for a reader.
    # Serves serializability (DESIGN, section 5).

    given accounts 1 balance=10

    T1 begin -> ok
    T2 begin -> ok
    T1 get accounts 1 -> balance=10
    T2 update accounts 1 balance=11 -> waits for T1
    T1 commit -> ok; T2 resumes: ok
    T2 commit -> ok
    committed -> as T1, T2
      accounts 1 balance=11

====================================  ===========================================================
``settings retries_max=1``            settings of the databases; ``lock_timeout_ms`` and so on
``only memory postgres``              the modes in which to play it, where not in all
``together T1 T2``                    in mode ``apart`` these share a database object
``given accounts 1 balance=10``       committed rows to start from
``T1 begin``                          ``with db.transaction()`` on a thread of its own
``T1 run``                            ``db.run(...)``, which tries again when that is safe
``T1.1 begin``                        ``with t.subtransaction()`` on the thread of T1
``T1.1 spawn``                        ``t.spawn(...)``, on a thread of the pool
``... within a limit``                after ``begin``, ``run`` or ``spawn``: of time, which is up in
                                      a step with three dots, when all stand still
``cancel T1.1``                       another thread cancels it
``T1.1 result``                       T1 asks for the result of its spawned child
``T1 commit``, ``T1 abort``           the block ends; ``T1 fails``: with an error of its own
``T1 get accounts 1`` ...             operations: see `operations`
``... -> not yet``                    T1 still waits: it does this as soon as it goes on
``T1 get accounts 1 ...``             three dots: the step itself takes as long as it takes
``committed``                         the last step: committed rows, and the serial order of the
                                      committed transactions that explains everything they saw
====================================  ===========================================================

``waits for T1`` names a top-level transaction, or a relative in the same hierarchy. A deadlock,
a conflict, a timeout, a violation ends the transaction that gets it (``deadlock, T1.1 aborted``)
and the program goes on in the parent; under ``run``, with retries, it goes up to the top instead.
Other errors are caught where they occur.

A mode in which a scenario goes differently has a file of its own beside it, ``name.apart.txt``.
The steps are those of ``name.txt``. To write all files anew with what happens now, run
``ACTIVEDB_REWRITE_SCENARIOS=1 pytest tests/scenarios``, and then review the diff, line by line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.lockmgr.wording import told
from tests.scenarios.judge import serial_order
from tests.scenarios.operations import shown, value
from tests.scenarios.stage import Stage
from tests.scenarios.strand import Step

if TYPE_CHECKING:
    from tests.scenarios.ground import Ground

__all__ = ["modes_of", "replay"]

_NAME = re.compile(r"T\d+(\.\d+)*")
_VERBS = ("begin", "run", "spawn", "result", "commit", "abort", "fails")


def modes_of(scenario: str) -> list[str] | None:
    """Return the modes that a scenario is for, or None for all."""
    for line in scenario.splitlines():
        if line.startswith("only "):
            return line.split()[1:]
    return None


def replay(scenario: str, ground: Ground) -> str:
    """Play the steps of a scenario; return it with what really happened."""
    ground.clear()
    script = Script(ground)
    lines: list[str] = []
    try:
        for number, line in enumerate(scenario.splitlines(), start=1):
            command = line.split(" -> ")[0].rstrip()
            if line.startswith("  "):
                continue  # what the step above was expected to cause
            if not command or command.startswith("#"):
                lines.append(line)
                continue
            try:
                lines += script.play(command)
            except Exception as error:
                error.add_note(f"line {number}: {line}")
                raise
        assert script.is_over, "a scenario ends with: committed"
    except BaseException as error:
        ground.kill()
        error.add_note("\n".join(lines))
        raise
    finally:
        script.stage.close()
    return "\n".join(lines) + "\n"


class Script:
    """Player of steps, one by one."""

    def __init__(self, ground: Ground):
        self.ground = ground
        self.stage = Stage(ground)
        self.is_over = False
        self._before: dict[Any, Any] | None = None

    def play(self, command: str) -> list[str]:
        """Return a step's lines, as they should stand in the file."""
        first, _, rest = command.partition(" ")
        match first:
            case "settings":
                for word in rest.split():
                    name, _, text = word.partition("=")
                    self.ground.settings[name] = value(text.replace("_", " "))
                return [command]
            case "only":
                return [command]
            case "together":
                self.stage.together = set(rest.split())
                return [command]
            case "given":
                self._given(rest)
                return [command]
            case "committed":
                return self._committed()
            case "cancel":
                return told(command, self.stage.cancel(rest))
        assert _NAME.fullmatch(first), f"not a step: {command}"
        if self._before is None:
            self._before = self.ground.committed()
        to_the_end = rest.endswith(" ...")
        step = Step(first, rest.removesuffix(" ...").split())
        return told(command, self.stage.play(step, to_the_end=to_the_end))

    def _given(self, text: str) -> None:
        table, rest = text.split(maxsplit=1)
        rows = []
        for part in rest.split(", "):
            key, *cells = part.split()
            row = {} if key == "new" else {"id": int(key)}
            rows.append(row | {c.split("=")[0]: value(c.split("=")[1]) for c in cells})
        self.ground.insert(table, rows)

    def _committed(self) -> list[str]:
        assert self.stage.is_over(), "a transaction has not ended, or has left locks behind"
        self.is_over = True
        after = self.ground.committed()
        tables = self.ground.database()[1]
        columns = {name: [c.name for c in table.columns] for name, table in tables.items()}
        history = self.stage.history()
        order = serial_order(history, self._before or {}, after, columns)
        if order is None:
            explained = "as no serial order"
        elif not order:
            explained = "nothing happened"
        else:
            explained = f"as {', '.join(order)}"
        rows = [f"  {name} {key} {shown(row)}" for (name, key), row in after.items()]
        return [f"committed -> {explained}", *(rows or ["  nothing"])]
