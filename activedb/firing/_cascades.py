"""Error messages about cascades: chains of rules that trigger rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from activedb.errors import CycleLimitExceeded, RuleFailed
from activedb.firing._names import error_text
from activedb.firing._triggered import Triggered
from activedb.transactions import Node

__all__ = ["failed_in", "too_deep", "too_many_cycles"]

_SHOWN = 5  # names at either end of a chain
_PENDING_SHOWN = 10


def too_deep(t: Node, depth: int, items: Sequence[Triggered]) -> CycleLimitExceeded:
    """Return the error for rules that would run `depth` deep, below `t` or as its next level."""
    chain = _shown(items[0].chain)
    return CycleLimitExceeded(
        f"{t.top.path}: rules trigger rules {depth} deep: {chain}; give one of them a condition "
        f"that ends it, or raise cascade_max"
    )


def too_many_cycles(t: Node, bound: int, pending: Sequence[Triggered]) -> CycleLimitExceeded:
    """Return the error for rules still deferred when the cycles of `t` are used up."""
    names = sorted({item.rule.name for item in pending})
    more = f" and {len(names) - _PENDING_SHOWN} more" if len(names) > _PENDING_SHOWN else ""
    longest = max(pending, key=lambda item: len(item.chain))
    return CycleLimitExceeded(
        f"{t.top.path}: more than {bound} deferred cycles; still deferred: "
        f"{', '.join(names[:_PENDING_SHOWN])}{more}, triggered by way of {_shown(longest.chain)}. "
        f"These rules keep triggering each other; give one a condition that ends it, or raise "
        f"cycles_max"
    )


def failed_in(rule: str, error: BaseException) -> str:
    """Return the message for a rule that failed with `error`, perhaps through a rule below it.

    Each rule of the chain is named once.
    """
    names, cause = [rule], error
    while isinstance(cause, RuleFailed) and type(cause) is RuleFailed and cause.__cause__:
        names.append(cause.rule)
        cause = cause.__cause__
    if len(names) == len(set(names)) <= 2 * _SHOWN + 1:
        return f"rule {rule} failed: {error_text(error)}"
    return f"rules {_shown(names)} failed: {error_text(cause)}"


def _shown(chain: Sequence[str]) -> str:
    """Return a chain of rules as text, each once with its count; cut a long chain in the middle."""
    names = [
        name if number == 1 else f"{name} ({number} times)"
        for name, number in Counter(chain).items()  # in order of first appearance
    ]
    if len(names) > 2 * _SHOWN + 1:
        left_out = len(names) - 2 * _SHOWN
        names[_SHOWN:-_SHOWN] = [f"… {left_out} more …"]
    return " → ".join(names)
