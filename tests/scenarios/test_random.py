"""Random scenarios, judged: parallel nested transactions that come in each other's way.

A seed draws who does what next, among those that do not wait. The naive model of nested
transactions has to find a serial order of the committed ones that explains every outcome. A
failure shows the seed and the steps; written to a file they are a scenario like any other.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.scenarios.ground import Ground
from tests.scenarios.script import Script

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
SEED = int(os.environ.get("ACTIVEDB_TEST_SEED", "0"))
WALKS = {"memory": 40, "postgres": 16, "apart": 6}
STEPS = 40
TOPS = ("T1", "T2", "T3")
KEYS = (1, 2, 3, 4)
GIVEN = "given accounts 1 balance=10, 2 balance=20, 3 balance=30"
ENDINGS_MAX = 200


def operation(chance: random.Random) -> str:
    """Draw something to do to rows."""
    key, amount = chance.choice(KEYS), chance.randint(1, 9)
    return chance.choice(
        [
            f"get accounts {key}",
            f"get accounts {key}",
            f"get accounts {key} for update",
            f"insert accounts {key} balance={amount}",
            f"update accounts {key} balance={amount}",
            f"update accounts {key} balance+={amount}",
            f"update accounts {key} balance+={amount}",
            f"delete accounts {key}",
            "select accounts",
            f"sum accounts balance where balance>={amount}",
            f"set accounts balance+=1 where balance<{3 * amount}",
            f"remove accounts where balance={amount}",
        ]
    )


class Walk:
    """One random scenario."""

    def __init__(self, ground: Ground, chance: random.Random):
        self.script = Script(ground)
        self.chance = chance
        self.lines: list[str] = []
        self._unborn = list(TOPS)
        self._children: dict[str, int] = {}

    def play(self, command: str) -> None:
        """Play a step and write down what happened."""
        self.lines += self.script.play(command)

    def step(self) -> None:
        """Draw and play a step."""
        idle = self.script.stage.idle()
        if self._unborn and (not idle or self.chance.random() < 0.2):
            self.play(f"{self._unborn.pop(0)} begin")
        elif idle:
            self.play(self._drawn(self.chance.choice(idle)))

    def _drawn(self, name: str) -> str:
        kind = self.chance.random()
        if kind < 0.22 and name.count(".") < 4:
            number = self._children[name] = self._children.get(name, 0) + 1
            return f"{name}.{number} {self.chance.choice(['begin', 'spawn', 'spawn'])}"
        if kind < 0.34:
            return f"{name} {self.chance.choice(['commit', 'commit', 'commit', 'abort', 'fails'])}"
        return f"{name} {operation(self.chance)}"

    def end(self) -> None:
        """End all that is open, children first."""
        stage = self.script.stage
        for _ in range(ENDINGS_MAX):
            idle = stage.idle()
            if not idle:
                break
            leaves = [name for name in idle if not stage.live_children(name)]
            self.play(f"{self.chance.choice(leaves or idle)} commit")  # it offers its locks
        self.play("committed")


@pytest.mark.long
@pytest.mark.parametrize("mode", WALKS)
def test_random_scenarios_have_a_serial_order(mode: str, request: pytest.FixtureRequest) -> None:
    url = None if mode == "memory" else request.getfixturevalue("postgres_url")
    ground = Ground(mode, url)
    try:
        for number in range(WALKS[mode] * SCALE):
            ground.clear()
            walk = Walk(ground, random.Random(f"{SEED}/{mode}/{number}"))
            try:
                walk.play(GIVEN)
                for _ in range(STEPS):
                    walk.step()
                walk.end()
                assert not any("as no serial order" in line for line in walk.lines)
            except BaseException as error:
                error.add_note(f"seed {SEED}/{mode}/{number}:\n" + "\n".join(walk.lines))
                ground.kill()
                raise
            finally:
                walk.script.stage.close()
    except BaseException:
        raise  # what hangs there hangs for ever: it must not be closed
    else:
        ground.close()
