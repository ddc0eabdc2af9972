from __future__ import annotations

import ast
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

import coupling
from coupling import ConditionAction, Coupling, DependencyGraph, DependencyKind

# Saygin, Ulusoy, Chakravarthy, sections 2.1 and 3.3.2, axioms 18 to 23; durability is ours.
MODES = [
    # mode, is a child, starts, depends on the triggering one, durable
    ("immediate", True, "at the event", "WD", "with the triggering commit"),
    ("deferred", True, "at the commit point", "WD", "with the triggering commit"),
    ("detached", False, "at the event", None, "recorded at the event"),
    ("causal", False, "at the event", "AD", "recorded by the triggering commit"),
    (
        "sequential",
        False,
        "after the triggering commit",
        "SQD",
        "recorded by the triggering commit",
    ),
    (
        "exclusive",
        False,
        "at the event or the abort",
        "ED",
        "recorded at the event, erased by the triggering commit",
    ),
]
MAY_START_AT_THE_EVENT = ["immediate", "detached", "causal", "exclusive"]


@pytest.mark.parametrize(("mode", "is_child", "starts", "dependency", "durability"), MODES)
def test_coupling_mode_means_what_the_table_says(
    mode: str, is_child: bool, starts: str, dependency: str | None, durability: str
) -> None:
    meant = Coupling(mode)
    assert meant.is_child is is_child
    assert meant.starts == starts
    assert meant.starts_at_event is (mode in MAY_START_AT_THE_EVENT)
    assert meant.dependency == dependency
    assert meant.durability == durability


def test_coupling_modes_are_those_of_the_table_and_no_others() -> None:
    assert [str(mode) for mode in Coupling] == [row[0] for row in MODES]
    with pytest.raises(ValueError, match="eventually"):
        Coupling("eventually")


def test_condition_action_modes_are_four() -> None:
    assert [str(mode) for mode in ConditionAction] == [
        "immediate",
        "sequential",
        "deferred",
        "detached",
    ]


# What a triggered transaction may do: at the event, and after the triggering one has ended. Each
# is asked to begin at the event, an exclusive one also.
SCENARIOS = [
    # mode, begins at the event, commits before the end, after the commit, after the abort
    ("immediate", "go", "go", None, "abort"),
    ("deferred", "go", "go", None, "abort"),
    ("detached", "go", "go", "go", "go"),
    ("causal", "go", "wait", "go", "abort"),
    ("sequential", "wait", None, "go", "abort"),
    ("exclusive", "go", "wait", "abort", "go"),
]


@pytest.mark.parametrize("ending", ["commit", "abort"])
@pytest.mark.parametrize(
    ("mode", "begins", "commits_before", "after_commit", "after_abort"), SCENARIOS
)
def test_coupling_mode_dependency_allows_what_the_mode_promises(
    mode: str,
    begins: str,
    commits_before: str | None,
    after_commit: str | None,
    after_abort: str | None,
    ending: str,
) -> None:
    graph: DependencyGraph[str] = DependencyGraph()
    graph.add("triggering")
    graph.begin("triggering")
    meant = Coupling(mode)
    graph.add("triggered", parent="triggering" if meant.is_child else None)
    if meant.dependency is not None:
        graph.depend("triggered", meant.dependency, "triggering")
    assert graph.begin("triggered").answer == begins
    if meant.is_child and ending == "commit":
        assert graph.commit("triggering").answer == "wait"  # axiom 19
        assert graph.commit("triggered").answer == "go"
        assert graph.committed("triggered").may_commit == ("triggering",)
        return
    if commits_before == "wait":
        assert graph.commit("triggered").answer == "wait"
    if ending == "commit":
        assert graph.commit("triggering").answer == "go"
        graph.committed("triggering")
        expected = after_commit
    else:
        graph.aborted("triggering")
        expected = after_abort
    attempt = graph.begin if begins == "wait" and expected == "abort" else graph.commit
    assert attempt("triggered").answer == expected


def test_coupling_child_may_commit_before_the_triggering_transaction_aborts() -> None:
    graph: DependencyGraph[str] = DependencyGraph()
    graph.add("triggering")
    graph.begin("triggering")
    graph.add("triggered", parent="triggering")
    graph.begin("triggered")
    graph.commit("triggered")
    graph.committed("triggered")
    assert graph.aborted("triggering").must_abort == ()


# The formulas of section 3.3, read by hand.
KINDS = [
    # kind, holds the beginning, holds the commit, aborts after a commit, after an abort
    ("CD", False, True, False, False),
    ("AD", False, True, False, True),
    ("WD", False, False, False, True),
    ("ED", False, True, True, False),
    ("SQD", True, False, False, True),
]


@pytest.mark.parametrize(
    ("kind", "holds_begin", "holds_commit", "after_commit", "after_abort"), KINDS
)
def test_dependency_kind_means_what_the_table_says(
    kind: str, holds_begin: bool, holds_commit: bool, after_commit: bool, after_abort: bool
) -> None:
    meant = DependencyKind(kind)
    assert meant.holds_begin is holds_begin
    assert meant.holds_commit is holds_commit
    assert meant.waits is (holds_begin or holds_commit)
    assert meant.aborts_dependent(committed=True) is after_commit
    assert meant.aborts_dependent(committed=False) is after_abort


def test_dependency_kinds_are_those_of_the_table() -> None:
    assert [str(kind) for kind in DependencyKind] == [row[0] for row in KINDS]


def test_coupling_exports_exist_and_are_sorted() -> None:
    assert coupling.__all__ == sorted(coupling.__all__)
    assert all(hasattr(coupling, name) for name in coupling.__all__)


def test_coupling_exports_each_public_name_from_one_module() -> None:
    modules = [m for m in pkgutil.iter_modules(coupling.__path__) if m.name.startswith("_")]
    sources = [import_module(f"coupling.{module.name}") for module in modules]
    for name in coupling.__all__:
        assert sum(name in source.__all__ for source in sources) == 1, name


def test_coupling_package_imports_the_standard_library_only() -> None:
    folder = Path(coupling.__file__).parent
    imported = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    assert imported - {"coupling"} <= sys.stdlib_module_names
