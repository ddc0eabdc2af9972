"""Display of users' values: as they are, or redacted."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Mapping
from hashlib import blake2b
from itertools import islice

from activedb.functions import message_of
from lockmgr import Predicate

__all__ = ["Params", "Redaction"]

_CHARS_MAX = 60
_PREDICATE_CHARS_MAX = 200
_ERROR_CHARS_MAX = 500
_PARAMS_MAX = 20
_DIGEST_BYTES = 3
_KINDS_MAX = 1_000


class _Hidden(dict[type, str]):
    """Placeholder of a redacted value, by its type; made once for each type."""

    def __missing__(self, kind: type) -> str:
        text = f"«{kind.__name__}»"
        if len(self) < _KINDS_MAX:
            self[kind] = text
        return text


_HIDDEN = _Hidden()

Params = tuple[tuple[str, str], ...]
"""Names and texts of an event's parameters; kept instead of the values, which may be large."""


class Redaction:
    """Conversion of keys, parameters and errors to texts of bounded length.

    Parameters
    ----------
    values : bool
        Whether values are shown. If not, a parameter is shown as its type, and a key as its type
        and a digest that depends on a secret of this object: equal keys look equal, but cannot be
        read.
    """

    def __init__(self, values: bool):
        self.values = values
        self._secret = secrets.token_bytes(16)

    def param(self, value: object) -> str:
        """Return the text of a parameter."""
        return _shortened(value) if self.values else _HIDDEN[type(value)]

    def key(self, key: object) -> str:
        """Return the text of a row's key; the columns of a compound key are separated by commas."""
        if isinstance(key, tuple):
            return ",".join(map(self._part, key))
        return self._part(key)

    def resource(self, resource: tuple[Hashable, ...]) -> str:
        """Return the text of a locked resource.

        Of a table, ``accounts``; of a row, ``accounts/7``; of a predicate,
        ``accounts/{balance >= 0}``.
        """
        first, *rest = resource
        return "/".join((str(first), *map(self.key, rest)))

    def params(self, params: Mapping[str, object]) -> Params:
        """Return the texts of parameters; of many, only the first few."""
        left = len(params) - _PARAMS_MAX
        shown = params.items() if left <= 0 else islice(params.items(), _PARAMS_MAX)
        if self.values:
            found = tuple([(str(name), _shortened(value)) for name, value in shown])
        else:
            found = tuple([(str(name), _HIDDEN[type(value)]) for name, value in shown])
        return found if left <= 0 else (*found, ("…", f"{left} more"))

    def error(self, error: BaseException) -> str:
        """Return class and message of an error; messages may quote values, so may be redacted."""
        name = type(error).__name__
        if not self.values:
            return name
        text = " ".join(message_of(error)[: 2 * _ERROR_CHARS_MAX].split())
        return f"{name}: {text[:_ERROR_CHARS_MAX]}" if text else name

    def _part(self, value: object) -> str:
        if isinstance(value, Predicate):
            text = value.text(self._part)
            most = _PREDICATE_CHARS_MAX
            return text if len(text) <= most else f"{text[:most]}…}}"
        if self.values:
            return _shortened(value)
        try:
            number = b"%d" % hash(value)
        except TypeError:
            return _HIDDEN[type(value)]
        digest = blake2b(number, key=self._secret, digest_size=_DIGEST_BYTES).hexdigest()
        return f"«{type(value).__name__} {digest}»"


def _shortened(value: object) -> str:
    if isinstance(value, str | bytes) and len(value) > _CHARS_MAX:
        return repr(value[:_CHARS_MAX]) + "…"
    try:
        text = repr(value)
    except Exception:  # a repr of the application
        return f"«{type(value).__name__}»"
    return text if len(text) <= _CHARS_MAX else text[:_CHARS_MAX] + "…"
