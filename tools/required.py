"""Requirements of activedb, direct and indirect, as they are installed here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["FOR_USERS", "Required", "required"]

FOR_USERS = ("columnar", "dashboard", "otel", "spark")
"""Extras that users install; the others are for working on activedb."""


@dataclass(frozen=True, slots=True)
class Required:
    """A distribution with the names of the distributions it needs.

    Attributes
    ----------
    name : str
        Normalised name: lower case, with hyphens.
    metadata : importlib.metadata.Distribution
    needs : frozenset of str
        Names of the needed distributions.
    """

    name: str
    metadata: importlib.metadata.Distribution
    needs: frozenset[str]


def required(name: str, extras: Iterable[str] = ()) -> list[Required]:
    """Return a distribution with some extras and all that it needs, by name. O(requirements).

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If one of them is not installed: only an installed distribution has a version.
    ValueError
        If there is no such extra.
    """
    extras = tuple(extras)
    known = importlib.metadata.metadata(name).get_all("Provides-Extra") or []
    if unknown := sorted(set(extras) - set(known)):
        raise ValueError(
            f"{name}, as it is installed, has no extra {', '.join(unknown)}: install it again"
        )
    needs: dict[str, set[str]] = {}
    done: set[tuple[str, str]] = set()
    left = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while left:
        key = left.pop()
        if key in done:
            continue
        done.add(key)
        of, extra = key
        needed = needs.setdefault(of, set())
        for text in importlib.metadata.requires(of) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            below = canonicalize_name(requirement.name)
            left += [(below, each) for each in ("", *requirement.extras)]
            if below != of:
                needed.add(below)
    return [
        Required(each, importlib.metadata.distribution(each), frozenset(needs[each]))
        for each in sorted(needs)
    ]
