"""S-transactions run on Spark's executors, in processes of their own: as one process has it."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError, FeedFailed
from activedb.scheduling import (
    TPG,
    Access,
    Partitioned,
    Program,
    ProgramRun,
    Results,
    SerialOrder,
    SharedTable,
)
from activedb.scheduling.partitioned import Costs
from activedb.store.system import dead_letters
from activedb.streams import Files
from spark_bridge import SparkFeed, SparkTasks
from tests.databases import place
from tests.drawing import SEED
from tests.ledger import read
from tests.patience import PATIENCE_S
from tests.scheduling.comparison import SCALE, check
from tests.scheduling.events import event
from tests.scheduling.workloads import Parameters, workload
from tests.spark_bridge.cluster import CLUSTER, cluster
from tests.streams.programs.bank import OpenBank, bank, tables

__all__ = ["cluster"]

pytestmark = pytest.mark.spark

NO_COSTS = Costs(0, 0)


class Counted(SparkTasks):
    """Tasks that are always worth it, and counted."""

    costs = NO_COSTS

    def __init__(self, spark: Any = None):
        super().__init__(spark)
        self.tasks = 0

    def run(self, payloads: Any) -> list[bytes]:
        self.tasks += len(payloads)
        return super().run(payloads)


def run_without_a_spark() -> None:
    runner = Counted()
    assert runner.slots == 0
    check(lambda: Partitioned(SerialOrder(), runner), workload(Parameters(transactions=5)))
    with pytest.raises(FeedFailed, match="no Spark is running"):
        runner.run([b""])


def test_without_a_spark_all_is_run_here() -> None:
    text = f"from {__name__} import run_without_a_spark; run_without_a_spark()"
    # In this process another test may have begun one.
    subprocess.run([sys.executable, "-c", text], check=True, timeout=PATIENCE_S)


def test_random_workloads_on_executors_give_the_serial_order(cluster: Any) -> None:
    runner = Counted(cluster)
    assert runner.slots == Counted().slots == 2
    for seed in range(2 * SCALE):
        scheduler = Partitioned((SerialOrder, TPG)[seed % 2](), runner)
        p = Parameters(
            seed=SEED + seed,
            keys=60,
            skew=0.0,
            length=2,
            states=2,
            computed=0.02,
            ranges=0.02,
            pieces=2,
        )
        check(lambda it=scheduler: it, workload(p))  # type: ignore[misc]
    assert runner.tasks >= 2


# -- a durable program, fed by Spark -------------------------------------------------------------

_KINDS = ("DEPOSIT", "TRANSFER", "ENTER", "RECENT", "CLOSE")


def _write_files(folder: Path, files: int) -> None:
    """Lines of events, a few of which cannot be understood."""
    chosen = random.Random(7)
    folder.mkdir()
    for number in range(files):
        lines = []
        for line in range(40):
            account = chosen.randrange(12)
            kind = chosen.choice(("DEPOSIT", "DEPOSIT", *_KINDS))
            if kind == "ENTER" and line > 3:
                kind = "DEPOSIT"  # its key is computed: many of them would be one component
            fields = [number * 10 + line / 10, kind, f"{number}-{line:02}"]
            fields += ["" if line == 20 else account, chosen.choice([account, 3]), line % 9]
            lines.append(",".join(map(str, fields)))
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


class OnStream:
    """The bank on a stream of a database of its own; its s-transactions in tasks, with a runner."""

    def __init__(self, db: adb.Database, runner: Counted | None):
        made = bank()
        accounts, book = tables(db)
        self.stream = db.stream(
            "input",
            source=Files("csv", schema="s DOUBLE, kind STRING, ident STRING, k INT, to INT, n INT"),
            type="kind",
            timestamp="timestamp_seconds(s)",
            id="ident",
            params={"k": "k", "to": "to", "n": "n"},
            types=dict.fromkeys(_KINDS, ("k",)),
            delay=timedelta(seconds=1),
        )
        self.stream.program(
            made.program,
            tables={made.accounts: accounts, made.book: book},
            scheduler="lwm",
        )
        self.opened = OpenBank(db, self.stream, made, accounts, book)
        self.run = self.stream.run
        self.run.run_in_tasks(runner)

    def everything(self) -> dict[str, Any]:
        """All that has come of it."""
        self.run.finish()
        letters = read(self.opened.db, dead_letters)
        return {
            "rows": self.opened.rows(),
            "outputs": self.opened.outputs(),
            "reasons": self.opened.reasons(),
            "letters": [(row["identity"], row["error"], row["reason"]) for row in letters],
            "totals": self.run.totals(),
        }


def test_durable_program_in_tasks_has_rows_outputs_and_letters_of_one_process(
    cluster: Any, postgres_url: str, tmp_path: Path
) -> None:
    _write_files(tmp_path / "input", 2)
    runner = Counted()
    batches: list[adb.AtomicBatch] = []
    with place(postgres_url) as where:
        bank = OnStream(where.open(scale_out=True), runner)

        def apply(batch: adb.AtomicBatch) -> None:
            batches.append(batch)
            bank.run.apply(batch)

        feed = SparkFeed(bank.stream, tmp_path / "input", tmp_path / "checkpoint", spark=CLUSTER)
        feed.run(apply)
        found = bank.everything()
    assert runner.tasks >= 4
    with place(postgres_url) as where:
        alone = OnStream(where.open(), None)
        for batch in batches:
            alone.run.apply(batch)
        assert alone.everything() == found
    assert found["rows"]["accounts"]
    assert found["letters"]
    assert found["reasons"]


# -- what happens to executors -------------------------------------------------------------------


def _program(function: Any) -> tuple[Program, SharedTable]:
    table = SharedTable("numbers", key=int, initial=0)
    program = Program("numbers", [table])

    @program.on("F")
    def write(e: Mapping[str, Any], access: Access) -> None:
        access.write(table[e["k"]], function, e["k"])

    return program, table


def _fed(program: Program, runner: SparkTasks | None) -> tuple[Results, ProgramRun]:
    scheduler = SerialOrder() if runner is None else Partitioned(SerialOrder(), runner)
    run = ProgramRun(program, scheduler)
    return run.feed([event("F", k, k=k) for k in range(8)], 1_000_000), run


@pytest.mark.crash
def test_executor_that_is_killed_in_a_task_makes_no_difference(
    cluster: Any, tmp_path: Path
) -> None:
    said = tmp_path / "killed"
    here = os.getpid()

    def function(has: int, k: int) -> int:
        if k == 5 and os.getpid() != here:
            try:
                told = os.open(said, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return 10 * k
            with open(f"/proc/{os.getppid()}/stat") as daemon:  # the parent of all workers
                executor = int(daemon.read().rpartition(")")[2].split()[1])
            os.write(told, str(executor).encode())
            os.kill(executor, signal.SIGKILL)
        return 10 * k

    program, table = _program(function)
    runner = Counted()
    _, run = _fed(program, runner)
    assert runner.tasks == 2
    executor = int(said.read_text())
    assert executor not in (here, os.getppid())
    assert run.state.of(table).newest() == {k: 10 * k for k in range(8)}


def test_functions_and_errors_of_a_file_that_executors_have_not_go_there_and_back(
    cluster: Any, tmp_path: Path
) -> None:
    file = tmp_path / "job_of_a_user.py"
    file.write_text(
        "import os\n"
        "MINE = os.getpid()\n"
        "class Odd(Exception):\n"
        "    pass\n"
        "def function(has, k):\n"
        "    if k % 2:\n"
        "        raise Odd(f'{k} is odd')\n"
        "    return int(os.getpid() != MINE)\n"
    )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
        program, table = _program(module.function)
        results, run = _fed(program, Counted())
    finally:
        del sys.modules[file.stem]
    errors = [t.outcome.error for t in results.transactions if t.outcome is not None]
    assert [type(error) for error in errors] == [type(None), module.Odd] * 4
    assert str(errors[1]) == "1 is odd"
    assert run.state.of(table).newest() == {0: 1, 2: 1, 4: 1, 6: 1}  # not in this process


def test_what_cannot_be_pickled_is_refused_by_name(cluster: Any) -> None:
    program, _ = _program(lambda has, k: cluster.version)
    with pytest.raises(DefinitionError, match="program numbers: the state access for F cannot be"):
        _fed(program, Counted())


def test_task_that_spark_cannot_send_is_a_failed_feed(cluster: Any) -> None:
    payloads: list[Any] = [threading.Lock()]
    with pytest.raises(FeedFailed, match=r"partitions of s-transactions: .*cannot pickle"):
        Counted().run(payloads)
