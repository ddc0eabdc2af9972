"""Dead letters: events and occurrences that could not be processed, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from activedb.errors import ActiveDBError, RuleFailed, UncertainOrder
from activedb.events import Occurrence, Undecided, encode
from activedb.firing._triggered import shortened
from activedb.functions import error_text, typed_text

__all__ = ["Letter", "storable", "uncertain"]

_IDENTITY_MAX, _ERROR_MAX = 400, 200  # characters of the columns
_CANDIDATES_MAX = 20  # listed in a reason


@dataclass(frozen=True, slots=True)
class Letter:
    """Row of the dead-letter table.

    Attributes
    ----------
    source : str
        The stream, or ``rule`` and the rule's name.
    identity : str
        Key that is unique among the letters of the source, and the same when work is replayed.
    kind : {"event", "rule"}
    payload : mapping
        The event or the occurrence, JSON-serialisable.
    error, reason : str
        Class and message of the error.
    """

    source: str
    identity: str
    kind: Literal["event", "rule"]
    payload: Mapping[str, Any]
    error: str
    reason: str

    def __post_init__(self) -> None:
        for name, length_max in (("identity", _IDENTITY_MAX), ("error", _ERROR_MAX)):
            object.__setattr__(self, name, shortened(getattr(self, name), length_max))

    @classmethod
    def of_rule(cls, identity: str, o: Occurrence, error: RuleFailed) -> Self:
        """Build a letter for a rule that failed on `o`."""
        return cls.of_firing(identity, _encoded(o), error)

    @classmethod
    def of_firing(cls, identity: str, payload: Mapping[str, Any], error: RuleFailed) -> Self:
        """Build a letter for a rule that failed on an occurrence, given in its encoded form."""
        return cls(
            source=f"rule {error.rule}",
            identity=identity,
            kind="rule",
            payload=payload,
            error=type(error.__cause__ or error).__name__,
            reason=storable(str(error)),
        )

    @classmethod
    def of_detection(cls, rule: str, identity: str, o: Occurrence, error: BaseException) -> Self:
        """Build a letter for an event that the detector of one rule cannot take."""
        return cls.of_event(f"rule {rule}", identity, _encoded(o), error)

    @classmethod
    def of_event(
        cls, stream: str, identity: str, payload: Mapping[str, Any], error: BaseException
    ) -> Self:
        """Build a letter for an event of a stream that could not be processed."""
        cause = error.__cause__ if isinstance(error, RuleFailed) and error.__cause__ else error
        return cls(
            source=stream,
            identity=identity,
            kind="event",
            payload=payload,
            error=type(cause).__name__,
            reason=storable(error_text(error) + _candidates(cause)),
        )


def uncertain(rule: str, undecided: Sequence[Undecided]) -> UncertainOrder:
    """Return the error for choices that the detector of a rule has left open in one step."""
    first = undecided[0]
    candidates = tuple(each for u in undecided for each in u.candidates)
    count = len(candidates)
    what = "a match that depends" if count == 1 else f"{count} matches that depend"
    return UncertainOrder(
        f"rule {rule}: {first.event or 'the end of a window'} completes {what} on an order of "
        "events which their timestamps do not tell; the choice is open: db.decisions, or choose "
        "another policy with on_uncertain=",
        candidates=candidates,
        certain=tuple(each for u in undecided for each in u.certain),
        rivals=tuple(each for u in undecided for each in u.rivals),
        undecided=tuple(undecided),
        rule=rule,
    )


def storable(text: str) -> str:
    """Return `text` with characters escaped that a database refuses: NUL and lone surrogates."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _candidates(error: BaseException) -> str:
    """Return the text of the undecided matches, for the reader of the letter."""
    if not isinstance(error, UncertainOrder):
        return ""
    found = [(each, " (certain)") for each in error.certain]
    found += [(each, "") for each in error.candidates]
    shown = [
        ", ".join(f"{name}={part!r}" for name, part in candidate.items()) + note
        for candidate, note in found[:_CANDIDATES_MAX]
    ]
    more = len(found) - len(shown)
    return "; candidates: " + "; ".join(shown) + (f"; and {more} more" if more else "")


def _encoded(o: Occurrence) -> Mapping[str, Any]:
    try:
        return encode(o)
    except ActiveDBError:
        # A letter must be written even if the rows have values that JSON cannot represent.
        try:
            shown = repr(dict(o.params))
        except Exception as error:  # of a class of the user's
            shown = typed_text(error)
        return {"name": o.name, "timestamp": str(o.timestamp), "params": shown}
