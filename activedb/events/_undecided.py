"""Choices left open because the order of events is uncertain (README, "Uncertain order")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from activedb.errors import BadEvent
from activedb.events._codec import decode, decode_params, encode, encode_params
from activedb.events._occurrence import Occurrence

__all__ = [
    "Rivals",
    "Undecided",
    "decode_undecided",
    "encode_undecided",
    "identity_of",
]

Candidate = Mapping[str, Any]
"""A possible match: part names to occurrences; a Kleene part maps to a tuple of occurrences."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """Reasons why one candidate is not certain.

    Attributes
    ----------
    unordered : tuple of (Occurrence, Occurrence)
        Pairs of events on which the candidate depends, and whose timestamps leave open which was
        first or how far apart they were.
    candidates : tuple of mapping
        Matches that may have been made in its place, of this choice or of others. They include
        matches that an event yet to be fed would complete.
    """

    unordered: tuple[tuple[Occurrence, Occurrence], ...] = ()
    candidates: tuple[Candidate, ...] = ()

    def __str__(self) -> str:
        lines = [f"the order or distance of {a} and {b} is not known" for a, b in self.unordered]
        lines += [f"may exclude it: {_shown(candidate)}" for candidate in self.candidates]
        return "; ".join(lines) or "it depends on a choice that is open"


@dataclass(frozen=True, slots=True)
class Undecided:
    """Possible matches of one step of a detector that are not certain.

    Attributes
    ----------
    identity : str
        Stable text derived from the events concerned: the same in a replay and after a restart.
    candidates : tuple of mapping
        The possible matches: occurrences by part name. Their numbers do not change:
        `Detector.resolve` takes these numbers, or the candidates themselves.
    certain : tuple of mapping
        Matches that the same step made because they are made in every order.
    rivals : tuple of Rivals
        For each candidate, by its number, the reasons why it is not certain.
    event : Occurrence or None
        The event whose feed completed the candidates; None: time completed them.
    us : int
        When the matches would have been made: the greatest reading of their constituents, or the
        moment that completed them, in microseconds since the epoch.
    """

    identity: str
    candidates: tuple[Candidate, ...]
    certain: tuple[Candidate, ...] = ()
    rivals: tuple[Rivals, ...] = field(default=())
    event: Occurrence | None = None
    us: int = 0


def identity_of(name: str, candidates: Iterable[Candidate], us: int) -> str:
    """Return the identity of a choice among candidates of the pattern called `name`."""
    texts = sorted(_text(candidate) for candidate in candidates)
    return sha256("\n".join([name, str(us), *texts]).encode("utf-8", "surrogatepass")).hexdigest()[
        :32
    ]


def text_of(o: Occurrence) -> str:
    """Return a text that identifies an occurrence by value, whatever object represents it.

    An occurrence without an id is identified by its parameters (by their repr, so that they need
    not be encodable).
    """
    if o.parts:
        return f"{o.name}({_text(o.parts)})"
    stamp = o.stamp
    at = f"{o.us}" if stamp is None else f"{o.us}[{o.low_us},{o.high_us}]{stamp.node}"
    if stamp is not None and stamp.local_us is not None:
        at += f"@{stamp.local_us}"
    if o.id is not None:
        return f"{o.key}{at}#{o.id}"
    return f"{o.key}{at}{sorted((name, repr(value)) for name, value in o.params.items())}"


def _text(candidate: Candidate) -> str:
    found = []
    for name, part in candidate.items():
        elements = part if isinstance(part, tuple) else (part,)
        found.append(f"{name}={'+'.join(map(text_of, elements))}")
    return " ".join(sorted(found))


def same_candidate(one: Candidate, other: Candidate) -> bool:
    """Return whether two mappings are the same match, comparing occurrences by value."""
    return one is other or _text(one) == _text(other)


def _shown(candidate: Candidate) -> str:
    return ", ".join(
        f"{name}: {' '.join(map(str, part)) if isinstance(part, tuple) else part}"
        for name, part in candidate.items()
    )


# -- as JSON -----------------------------------------------------------------------------------


def encode_undecided(undecided: Undecided) -> dict[str, Any]:
    """Return `undecided` as a JSON-serialisable dict for `decode_undecided`.

    Raises
    ------
    BadEvent
        If an occurrence cannot be encoded.
    """
    return {
        "identity": undecided.identity,
        "candidates": [_encode(each) for each in undecided.candidates],
        "certain": [_encode(each) for each in undecided.certain],
        "rivals": [
            {
                "unordered": [[encode(a), encode(b)] for a, b in each.unordered],
                "candidates": [_encode(candidate) for candidate in each.candidates],
            }
            for each in undecided.rivals
        ],
        "event": None if undecided.event is None else encode(undecided.event),
        "us": undecided.us,
    }


def decode_undecided(data: Mapping[str, Any]) -> Undecided:
    """Return the choice that `encode_undecided` encoded.

    Raises
    ------
    BadEvent
        If `data` does not come from `encode_undecided`.
    """
    try:
        event = data["event"]
        return Undecided(
            data["identity"],
            tuple([_decode(each) for each in data["candidates"]]),
            tuple([_decode(each) for each in data["certain"]]),
            tuple(
                [
                    Rivals(
                        tuple([(decode(a), decode(b)) for a, b in each["unordered"]]),
                        tuple([_decode(candidate) for candidate in each["candidates"]]),
                    )
                    for each in data["rivals"]
                ]
            ),
            None if event is None else decode(event),
            data["us"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadEvent(f"not an encoded choice ({error!r}): {data!r}") from error


def _encode(candidate: Candidate) -> list[Any]:
    # Pairs keep the order of the parts; jsonb would sort the keys of an object.
    return [
        [
            encode_params({"name": name})["name"],
            [encode(o) for o in part] if isinstance(part, tuple) else encode(part),
        ]
        for name, part in candidate.items()
    ]


def _decode(data: list[Any]) -> Candidate:
    return {
        decode_params({"name": name})["name"]: (
            tuple(map(decode, part)) if isinstance(part, list) else decode(part)
        )
        for name, part in data
    }
