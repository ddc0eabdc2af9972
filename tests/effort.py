"""Measures of work as counts; a time would say more about the machine."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["calls_of"]


def calls_of(work: Callable[[], object], *, of_c: bool = True) -> int:
    """Count the calls of functions, of Python and `of_c`, and the steps of generators.

    On this thread; no garbage is collected meanwhile, whose finalizers would count. What one
    function of C does within one call is not seen: a search through a list counts as one.
    """
    counted = ("call", "c_call") if of_c else ("call",)
    count = 0

    def note(frame: object, what: str, argument: object) -> None:
        nonlocal count
        count += what in counted

    collects, before = gc.isenabled(), sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
