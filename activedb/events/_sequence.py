"""Sequence: events in time order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from activedb.errors import PatternError
from activedb.events._choices import NO_SKIP, Selection, Skip, SkipTo, one_of
from activedb.events._combination import Combination
from activedb.events._expression import Expression, window_us_of
from activedb.events._kleene import Kleene
from activedb.events._names import name_text
from activedb.events._primitives import Negation, seconds_text

__all__ = ["Sequence"]


@dataclass(frozen=True, slots=True, repr=False)
class Sequence(Combination):
    """Sequence: events in strict time order, with negated events before, between and after.

    Attributes
    ----------
    gap_us : int or None
        The longest time from the end of one constituent to the beginning of the next, in
        microseconds, inclusive.
    selection : Selection
        The events allowed between neighbours.
    skip : Skip
        Restriction on where later matches may start.
    """

    gap_us: int | None = None
    selection: Selection = Selection.ANY
    skip: Skip = NO_SKIP

    def check(self) -> None:
        self._check_parts()
        if all(isinstance(part, Negation) or _may_be_empty(part) for part in self.parts):
            raise PatternError(f"{self!r} could occur without any event: demand at least one")
        if self.window_us is None:
            self._check_decided()
            self._check_bounded()
        if self.skip.part is not None and self.skip.part not in self.names:
            raise PatternError(
                f"{self!r} skips to the part {self.skip.part!r}, which it does not have: "
                f"write one of {', '.join(self.names)}"
            )

    def _check_decided(self) -> None:
        """Check that without a window each negation has a constituent on both sides."""
        for parts, where in ((self.parts, "start"), (self.parts[::-1], "end")):
            for part in parts:
                if isinstance(part, Negation):
                    raise PatternError(
                        f"{part!r} may stand at the {where} of {self!r}, where it is never decided "
                        "without a window: say how far it looks with .within(seconds)"
                    )
                if not _may_be_empty(part):
                    break

    def _check_bounded(self) -> None:
        """Check that without a window a later part ends each unbounded Kleene part."""
        for number, part in enumerate(self.parts):
            if not isinstance(part, Kleene) or part.maximum is not None:
                continue
            is_ended = self.selection is not Selection.ANY and any(
                not isinstance(later, Negation) and not _may_be_empty(later)
                for later in self.parts[number + 1 :]
            )
            if not is_ended:
                raise PatternError(
                    f"{part!r} has neither a bound nor a window, so it would keep every event "
                    "for ever: give it a maximum, or the sequence .within(seconds)"
                )

    @property
    def positives(self) -> tuple[Expression, ...]:
        """The parts that are not negated."""
        return tuple(part for part in self.parts if not isinstance(part, Negation))

    def gap(self, longest: float | timedelta) -> Sequence:
        """Limit the time between neighbours: constituents, and elements of a Kleene part."""
        if self.gap_us is not None:
            raise PatternError(f"{self!r} has its gap already: call gap() once")
        return replace(self, gap_us=window_us_of(longest, "gap()"))

    def selecting(self, selection: str) -> Sequence:
        """Set which events are allowed between neighbours.

        Parameters
        ----------
        selection : {"any", "next", "strict"}
        """
        return replace(self, selection=one_of(Selection, selection, "a selection strategy"))

    def skipping(self, to: str, part: str | None = None) -> Sequence:
        """Set where later matches may start after a match was made.

        Parameters
        ----------
        to : {"none", "to_next", "past_last", "to_first", "to_last"}
        part : str, optional
            The name of a part, for the last two.
        """
        return replace(self, skip=Skip.of(to, part))

    def timed_out(self) -> Expression:
        """Return the event that occurs when the window of a partial match ends.

        It does not occur if the match is complete by then.
        """
        from activedb.events._temporal import TimedOut

        return TimedOut(self)

    def __repr__(self) -> str:
        text = f"SEQ({', '.join(map(repr, self.parts))})" + self._conditions()
        if self.gap_us is not None:
            text += f" GAP {seconds_text(self.gap_us)}s"
        if self.selection is not Selection.ANY:
            text += f" SELECT {self.selection.value}"
        if self.skip.to is not SkipTo.NONE:
            text += f" SKIP {self.skip.to.value}"
            text += "" if self.skip.part is None else f" {name_text(self.skip.part)}"
        return text + self._choices()


def _may_be_empty(part: Expression) -> bool:
    return isinstance(part, Kleene) and part.minimum == 0
