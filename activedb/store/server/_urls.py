"""URLs of Postgres servers, and their redaction."""

from __future__ import annotations

import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from activedb.config import mask_url
from activedb.errors import InvalidURL

__all__ = ["postgres_url"]

_FORM = "postgresql+psycopg://user:password@host:5432/database"
_OF_DATABASE = "cannot use", f" as a database URL; write {_FORM} or memory://"
_BEHIND_A_NAME = re.compile(r"(:/{0,2}[^:/?#@]*:).*", re.DOTALL)


def postgres_url(text: str, *, refusal: tuple[str, str] = _OF_DATABASE) -> URL:
    """Return the parsed URL of a Postgres.

    Parameters
    ----------
    text : str
        URL as the user wrote it.
    refusal : (str, str)
        Parts of the error message before and after the refused URL.

    Raises
    ------
    InvalidURL
        If it is not the URL of a Postgres. The message shows nothing that may be a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise InvalidURL(f"{refusal[0]} {_shown(text)!r}{refusal[1]}")
    if "@" in (url.host or ""):
        raise InvalidURL(
            f"cannot use {_shown(text)!r} as a database URL: there is an @ too many; in a name or "
            f"password write it as %40"
        )
    return url


def _shown(text: str) -> str:
    """Return a URL, mistyped anywhere, without any part that may be a password."""
    masked = mask_url(text)
    return masked if masked != text else _BEHIND_A_NAME.sub(r"\1***", text)
