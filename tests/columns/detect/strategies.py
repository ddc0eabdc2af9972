"""Random sequences that columns can do, streams of events, and cuts into batches."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from activedb.columns.detect._plan import supports
from activedb.errors import PatternError
from activedb.events import Expression, Negation, Occurrence, event, many, occurrence, seq
from activedb.events.terms import attr, part

__all__ = ["batches", "events", "sequences"]

NAMES = ("A", "B", "C")


def _plain(o: Occurrence) -> bool:
    return bool(o.params["x"] is not None and o.params["x"] > 1)


def _same_x(parts: Any) -> bool:
    first, *_ = parts.values()
    first = first[0] if isinstance(first, tuple) else first
    last = list(parts.values())[-1] or first
    last = last[-1] if isinstance(last, tuple) else last
    return bool(first.params["x"] == last.params["x"])


def _conditions(names: list[str], kleene: set[str]) -> st.SearchStrategy[Any]:
    one = st.sampled_from(names)
    value = st.one_of(
        one.map(lambda name: part(name).x),
        one.map(lambda name: part(name).x + part(name).y),
        one.map(lambda name: -part(name).y),
        st.integers(0, 3),
    )
    term = one.map(lambda name: part(name).x)
    comparison = st.one_of(
        st.builds(lambda a, b: a < b, term, value),
        st.builds(lambda a, b: a == b, term, value),
        st.builds(lambda a, b: a != b, term, value),
        st.builds(lambda a, b: a.between(b, 2), term, value),
        st.builds(lambda a: a.is_null(), term),
        st.builds(lambda a, b: a.in_([b, 0, None]), term, value),
        st.builds(lambda a, b: part(a).s == part(b).s, one, one),
        st.builds(lambda a: part(a).s == "u", one),
    )
    if kleene:
        rising = st.sampled_from(sorted(kleene)).map(lambda b: part(b).x >= part(b).x.prev())
        comparison = st.one_of(comparison, rising)
    return st.one_of(
        comparison,
        st.builds(lambda a, b: a & b, comparison, comparison),
        st.builds(lambda a, b: a | ~b, comparison, comparison),
    )


@st.composite
def sequences(draw: st.DrawFn) -> Expression:
    """Sequences of which `supports` has no reason why not."""
    parts: list[Any] = []
    names: list[str] = []
    kleene: set[str] = set()
    for place in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 3)) == 0:
            parts.append(~event(draw(st.sampled_from(("N", "A", "B")))))
        where = draw(st.sampled_from([None, None, None, attr("x") >= 1, attr("s") == "u", _plain]))
        alias = f"p{place}"
        one: Any = event(draw(st.sampled_from(NAMES)), where)
        if draw(st.integers(0, 3)) == 0:
            kleene.add(alias)
            least = draw(st.integers(0, 2))
            most = draw(st.sampled_from([None, least + 1, max(least, 1)]))
            one = many(one, least, most, greedy=draw(st.booleans()))
        parts.append(one.named(alias))
        names.append(alias)
    sequence = seq(*parts)
    if draw(st.booleans()):
        sequence = sequence.same("k")
    if draw(st.integers(0, 3)) == 0:
        sequence = sequence.same("j")
    if kleene or draw(st.integers(0, 3)) != 0 or isinstance(parts[0], Negation):
        sequence = sequence.within(draw(st.integers(2, 12)))
    if draw(st.integers(0, 3)) == 0:
        sequence = sequence.gap(draw(st.integers(1, 5)))
    if draw(st.booleans()):
        sequence = sequence.selecting("next")
    if draw(st.integers(0, 2)) == 0:
        sequence = sequence.where(draw(_conditions(names, kleene)))
    if draw(st.integers(0, 9)) == 0:
        sequence = sequence.where(_same_x)
    context = st.sampled_from(
        ["unrestricted", "unrestricted", "recent", "chronicle", "continuous", "cumulative"]
    )
    return sequence.context(draw(context))


def is_supported(sequence: Expression) -> bool:
    """Return whether a sequence is valid and can be detected in columns."""
    try:
        return supports(sequence) is None
    except PatternError:
        return False


@st.composite
def events(draw: st.DrawFn, count_max: int = 14) -> list[Occurrence]:
    """Events in the order of their places, all with the same parameters."""
    times = sorted(draw(st.lists(st.integers(0, 18), max_size=count_max)))
    with_ids = draw(st.booleans())
    found = []
    for number, time in enumerate(times):
        found.append(
            occurrence(
                draw(st.sampled_from("ABCN" if number % 4 else "ABCX")),
                timestamp=time,
                id=draw(st.sampled_from([None, "a", "b"])) if with_ids else None,
                k=draw(st.sampled_from([0, 1, 1.0, True, "a", None])),
                j=draw(st.integers(0, 1)),
                x=draw(st.sampled_from([0, 1, 2, 3, None])),
                y=draw(st.sampled_from([0, 1.5, 2.0, -1.0])),
                s=draw(st.sampled_from(["u", "v", None])),
                n=number,
            )
        )
    return sorted(found, key=lambda o: (o.us, o.id or ""))


@st.composite
def batches(draw: st.DrawFn, found: list[Occurrence]) -> list[list[Occurrence]]:
    """Events cut at random places; those of a batch in any order that keeps their places."""
    cut = []
    rest = list(found)
    while rest:
        size = draw(st.integers(1, 6))
        batch, rest = rest[:size], rest[size:]
        shuffled = draw(st.permutations(batch))
        # Arrival decides where time and id do not: those keep their order.
        ties: dict[tuple[int, str], list[Occurrence]] = {}
        for o in batch:
            ties.setdefault((o.us, o.id or ""), []).append(o)
        cut.append([ties[(o.us, o.id or "")].pop(0) for o in shuffled])
    return cut
