"""Access sets derived from a function's source: as narrow as it is clear, never too few."""

# The functions are as users may write them, without annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from activedb.scheduling import Program, ProgramRun, Ref, SerialOrder, SharedTable, View
from activedb.scheduling._program import derived
from tests.scheduling.events import event

A = SharedTable("a", key=int, initial=0, history=60)
B = SharedTable("b", key=int, initial=0)
TEXTS = SharedTable("texts", key=str, initial="")
FOREIGN = SharedTable("foreign")
TOTAL = B[0]
OF_TOTAL = A.computed(abs, reads=(B[3],))
MOVING = A
LIMIT = 100

for _ in range(2):
    REPEATED = A


def _moves() -> None:
    global MOVING
    MOVING = B


TABLES = (A, B, TEXTS)
ALL = {table.range() for table in TABLES}
E = {"x": 1, "y": 5, "name": "n", "odd": [1], "nan": float("nan"), "text": "t"}


def sets(function: Callable[..., Any], e: Mapping[str, Any] = E) -> tuple[set[Ref], set[Ref]]:
    reads, writes = derived(function, TABLES)
    return set(reads(e)), set(writes(e))


class Recorder:
    """Stand-in for a `View` that notes what is accessed."""

    def __init__(self) -> None:
        self.reads: list[Ref] = []
        self.writes: list[Ref] = []

    def read(self, ref: Ref) -> Any:
        self.reads.append(ref)
        return 7

    def write(self, ref: Ref, value: Any) -> None:
        self.writes.append(ref)

    def abort(self, reason: str) -> None:
        raise RuntimeError(reason)


# -- what is clear -------------------------------------------------------------------------------


def keys(t: View, e: Mapping[str, Any]) -> None:
    t.write(A[e["x"]], t.read(A[e["y"]]) + t.read(B[e["x"] * 2 + 1]) + LIMIT)
    t.write(TEXTS[e["name"] + "!"], "text")


def test_derived_sets_of_keys_of_parameters_are_those_keys() -> None:
    assert sets(keys) == ({A[5], B[3]}, {A[1], TEXTS["n!"]})


def test_derived_sets_of_local_names_bound_once_are_followed() -> None:
    def function(t: View, e: Mapping[str, Any]) -> None:
        key = e["x"] + 1
        source = A
        ref = source[key]
        if (other := B[-key]) is not None:
            t.write(other, t.read(ref))

    assert sets(function) == ({A[2]}, {B[-2]})


def test_derived_sets_of_windows_ranges_and_named_references() -> None:
    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(A[e["x"]].window(2 * e["y"]))
        t.read(B.range(e["x"], high=e["y"]))
        t.read(ref=TOTAL)
        t.read(A[1, "key"] if e["x"] else A[8])

    reads, writes = sets(function)
    # (1, "key") is no key of A, so it stands for any
    assert reads == {A[1].window(10), B.range(1, 5), B[0], A.range(), A[8]}
    assert writes == set()


def test_derived_sets_of_computed_keys_are_the_table_and_what_is_read_for_them() -> None:
    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(A.computed(abs, reads=(B[e["x"]],)))
        t.read(OF_TOTAL)

    assert sets(function) == ({A.range(), B[1], B[3]}, set())


def test_derived_sets_of_a_lambda() -> None:
    assert sets(lambda t, e: t.read(A[e["x"]])) == ({A[1]}, set())


def test_derived_sets_of_nested_functions_and_comprehensions_that_use_the_view() -> None:
    def function(t: View, e: Mapping[str, Any]) -> Any:
        def later() -> Any:
            return t.read(A[e["x"]])

        return [t.read(B[key]) for key in e["odd"]] + [later()]

    assert sets(function) == ({A[1], B.range()}, set())


def test_derived_sets_leave_out_tables_of_other_programs() -> None:
    def function(t: View, e: Mapping[str, Any]) -> Any:
        return t.read(A[1]) if e["x"] else t.read(FOREIGN[1])

    assert sets(function) == ({A[1]}, set())


# -- what is not ---------------------------------------------------------------------------------


def _one_table() -> list[Callable[..., Any]]:
    """Functions that read something of table a, and it isn't clear what."""

    def looped(t, e):
        for key in range(3):
            t.read(A[key])

    def bound_twice(t, e):
        key = e["x"]
        if e["y"]:
            key = e["y"]
        t.read(A[key])

    def augmented(t, e):
        key = e["x"]
        key += 1
        t.read(A[key])

    def changed_parameters(t, e):
        e["x"] = 2
        t.read(A[e["x"]])

    def parameters_elsewhere(t, e):
        _change(e)
        t.read(A[e["x"]])

    def parameters_popped(t, e):
        e.pop("x")
        t.read(A[e.get("x", 3)])

    def parameters_aliased(t, e):
        f = e
        f["x"] = 2
        t.read(A[e["x"]])

    def of_state(t, e):
        t.read(A[t.read(A[e["x"]])])

    def conditional(t, e):
        t.read(A[e["x"] if e["y"] else e["z"]])

    def missing(t, e):
        t.read(A[e["nothing"]] if "nothing" in e else A[4])

    def of_wrong_type(t, e):
        t.read(A[e["name"]] if e["x"] == "text" else A[4])

    def unhashable(t, e):
        t.read(A[e["odd"]] if not e["odd"] else A[4])

    def divided(t, e):
        t.read(A[e["x"] // 0] if e["x"] == "text" else A[4])

    def of_a_global(t, e):
        t.read(A[LIMIT])

    def called(t, e):
        t.read(A[abs(e["x"])])

    def of_a_parameter_list(t, e):
        t.read(A[e["odd"][0]])

    def shadowed_in_a_comprehension(t, e):
        key = e["x"]
        [t.read(A[key]) for key in (7, 8)]
        return key

    def shadowed_in_a_lambda(t, e):
        key = e["x"]
        (lambda key: t.read(A[key]))(9)
        return key

    def from_outside_a_function(t, e):
        key = e["x"]

        def move():
            nonlocal key
            key = 9

        move()
        t.read(A[key])

    def of_a_walrus(t, e):
        [t.read(A[k]) for n in (1, 2) if (k := n)]

    def of_a_match(t, e):
        match e["odd"]:
            case [key]:
                t.read(A[key])

    def of_an_error(t, e):
        try:
            raise KeyError(3)
        except KeyError as key:
            t.read(A[key.args[0]])

    def of_bounds(t, e):
        t.read(A.range(t.read(A[1])))

    def of_a_window(t, e):
        t.read(A[2].window(t.read(A[1])))

    def doubled(t, e):
        k1 = e["x"] + e["x"]
        k2 = k1 + k1
        k3 = k2 + k2
        k4 = k3 + k3
        k5 = k4 + k4
        k6 = k5 + k5
        t.read(A[k6])

    def unpacked(t, e):
        key, _ = e["x"], 1
        t.read(A[key])

    def itself(t, e):
        if e["x"] == "text":
            key = key + 1  # type: ignore[has-type]  # noqa: F821
            t.read(A[key])

    def deleted(t, e):
        key = e["x"]
        del key
        [key] = e["odd"]
        t.read(A[key])

    return [each for each in locals().values() if callable(each)]


def _all_tables() -> list[Callable[..., Any]]:
    """Functions that access something, and it isn't clear of which table."""

    def handed_on(t, e):
        _read_of(t)

    def kept(t, e):
        u = t
        u.read(A[1])

    def method_kept(t, e):
        read = t.read
        read(A[1])

    def in_a_list(t, e):
        [t][0].read(A[1])

    def by_name(t, e):
        getattr(t, "read")(A[1])  # noqa: B009

    def compared(t, e):
        return t == _read_of(t)  # type: ignore[func-returns-value]

    def rebound(t, e):
        t = _Other(t)
        t.read(A[1])

    def rebound_within(t, e):
        [t.read(A[1]) for t in (_Other(t),)]

    def as_default(t, e):
        (lambda u=t: u.read(A[1]))()

    def with_a_class(t, e):
        class Inner:
            A = B
            t.read(A[1])

    def through_names(t, e):
        locals()["t"].read(A[1])

    def evaluated(t, e):
        eval("t.read(A[1])")

    def of_a_parameter(t, e):
        t.read(e["table"][1]) if "table" in e else t.read(B[2])

    def of_a_moving_global(t, e):
        t.read(MOVING[1])

    def of_a_repeated_global(t, e):
        t.read(REPEATED[1])

    def of_an_alternative(t, e):
        t.read((A if e["x"] else B)[1])

    def of_a_loop(t, e):
        for table in (A, B):
            t.read(table[1])

    def of_a_default(t, e, table=A):
        t.read(table[1])

    def of_a_local_import(t, e):
        from tests.scheduling.test_derivation import A as a  # noqa: N811

        t.read(a[1])

    def starred(t, e):
        t.read(*[A[1]])

    def doubly_starred(t, e):
        t.read(**_named(A[1]))

    def of_a_call(t, e):
        t.read(_ref())

    def of_a_method(t, e):
        t.read(A.__getitem__(1))

    def computed_of_a_list(t, e):
        t.read(A.computed(abs, reads=tuple(e["refs"])))

    def any_arguments(*given):
        given[0].read(A[1])

    def shadowing(t, e):
        A = B if e["x"] else TEXTS  # noqa: N806
        t.read(A[1])

    def effect(t, e):
        t._read(A[1])

    return [each for each in locals().values() if callable(each)]


def _change(e: Any) -> None:
    e["x"] = 2


def _named(ref: Ref) -> dict[str, Ref]:
    return {"ref": ref}


def _ref() -> Ref:
    return A[1]


def _read_of(t: Any) -> None:
    t.read(A[1])


class _Other:
    def __init__(self, t: Any):
        self._t = t

    def read(self, ref: Ref) -> Any:
        return self._t.read(B[2])


def _name(function: Callable[..., Any]) -> str:
    return function.__name__


@pytest.mark.parametrize("function", _one_table(), ids=_name)
def test_derived_sets_of_an_unclear_key_have_the_whole_table(function: Callable[..., Any]) -> None:
    reads, writes = sets(function)
    assert A.range() in reads
    assert B.range() not in reads
    assert writes == set()
    _assert_enough(function)


@pytest.mark.parametrize("function", _all_tables(), ids=_name)
def test_derived_sets_of_an_unclear_table_have_all_tables(function: Callable[..., Any]) -> None:
    assert sets(function)[0] == ALL
    _assert_enough(function)


def _assert_enough(function: Callable[..., Any]) -> None:
    """Run it, and see that all it accesses was told before."""
    e = dict(E)
    reads, _ = sets(function, e)
    recorder = Recorder()
    with contextlib.suppress(Exception):  # what came before it counts
        function(recorder, e)
    for ref in recorder.reads:
        assert ref in reads or ref.table.range() in reads, ref


def test_derived_sets_of_writes_that_are_unclear() -> None:
    def function(t: View, e: Mapping[str, Any]) -> None:
        for key in e["odd"]:
            t.write(A[key], 1)
        t.write(B[1], 2)

    assert sets(function) == (set(), {A.range(), B[1]})


@pytest.mark.parametrize("key", ["nothing", "odd", "name", "nan"])
def test_derived_sets_of_a_parameter_that_is_no_key_have_the_whole_table(key: str) -> None:
    table = SharedTable("a", key=None if key == "nan" else int)

    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(table[e["key"]])

    e = {"key": E[key]} if key in E else {}
    reads, _ = derived(function, (table,))
    assert list(reads(e)) == [table.range()]


# -- functions whose source is not certain -------------------------------------------------------


def test_derived_sets_without_source_are_everything() -> None:
    names: dict[str, Any] = {"A": A}
    exec("def function(t, e):\n    t.read(A[1])", names)
    assert sets(names["function"]) == (ALL, ALL)


def test_derived_sets_of_what_was_compiled_from_another_text_are_everything(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text("def function(t, e):\n    t.read(A[1])\n")
    names: dict[str, Any] = {"A": A}
    exec(compile("def function(t, e):\n    t.read(A[2])\n", str(path), "exec"), names)
    assert sets(names["function"]) == (ALL, ALL)


def test_derived_sets_of_what_a_decorator_made_are_everything() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*given: Any) -> Any:
            return function(*given)

        return wrapper

    @decorated
    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(A[1])

    assert sets(function) == (ALL, ALL)


def test_derived_sets_of_two_lambdas_in_one_line_are_everything() -> None:
    one, two = (lambda t, e: t.read(A[1])), (lambda t, e: t.read(B[1]))
    assert sets(one) == sets(two) == (ALL, ALL)


def test_derived_sets_of_other_callables_are_everything() -> None:
    class Called:
        def __call__(self, t: View, e: Mapping[str, Any]) -> None:
            t.read(A[1])

        def method(self, t: View, e: Mapping[str, Any]) -> None:
            t.read(A[1])

    for function in (Called(), Called().method, functools.partial(keys)):
        assert sets(function) == (ALL, ALL)


def test_derived_sets_of_a_closure_are_of_what_it_holds_when_it_runs() -> None:
    def made(table: SharedTable) -> Callable[..., Any]:
        def function(t: View, e: Mapping[str, Any]) -> None:
            t.read(table[e["x"]])

        return function

    assert sets(made(A)) == ({A[1]}, set())
    assert sets(made(B)) == ({B[1]}, set())


def test_derived_sets_of_a_closure_over_a_loop_are_everything() -> None:
    for table in (A, B):

        def function(t: View, e: Mapping[str, Any]) -> None:
            t.read(table[e["x"]])  # noqa: B023

        assert sets(function)[0] == ALL


def test_derived_sets_of_a_closure_whose_name_is_bound_again_are_everything() -> None:
    table = A

    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(table[e["x"]])

    table = B
    assert sets(function)[0] == ALL


def test_derived_sets_of_a_closure_that_holds_nothing_yet_are_everything() -> None:
    def function(t: View, e: Mapping[str, Any]) -> None:
        t.read(table[e["x"]])

    assert sets(function)[0] == ALL
    table = A
    assert sets(function)[0] == {A[1]}


def test_derived_sets_after_the_function_has_run_often_are_the_same() -> None:
    recorder = Recorder()
    for _ in range(200):  # the interpreter rewrites code that runs often
        keys(recorder, E)  # type: ignore[arg-type]
    copy = FunctionType(keys.__code__, keys.__globals__)
    assert sets(copy) == ({A[5], B[3]}, {A[1], TEXTS["n!"]})


# -- in a program --------------------------------------------------------------------------------


def test_program_with_derived_sets_runs_only_what_is_within_them() -> None:
    program = Program("shop", [A, B])

    @program.transaction("MOVE")
    def move(t: View, e: Mapping[str, Any]) -> int:
        left = t.read(A[e["source"]]) - e["amount"]
        t.write(A[e["source"]], left)
        t.write(B[e["target"]], t.read(B[e["target"]]) + e["amount"])
        return int(left)

    (body,) = program.operations("MOVE", {"source": 1, "target": 2, "amount": 5})
    assert set(body.targets) == {A[1], B[2]}
    run = ProgramRun(program, SerialOrder())
    run.feed([event("MOVE", 1, source=1, target=2, amount=5), event("MOVE", 2, source=1)])
    results = run.finish()
    assert [t.outcome and t.outcome.reason for t in results.transactions] == [
        None,
        "KeyError: 'amount'",
    ]
    assert run.state.of(A).newest() == {1: -5}
    assert run.state.of(B).newest() == {2: 5}
