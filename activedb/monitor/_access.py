"""Access control of the monitor's server: the Host header and the token."""

from __future__ import annotations

import hmac
import ipaddress

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.loopback import is_loopback

__all__ = ["MonitorAccess"]


class MonitorAccess:
    """Check of requests by Host header and bearer token.

    Parameters
    ----------
    settings : Settings
        Its ``monitor_…`` fields are used.

    Raises
    ------
    ConfigurationError
        If the settings would let others read or change more than they should, because there is no
        token.
    """

    def __init__(self, settings: Settings):
        host = settings.monitor_host
        token = settings.monitor_token
        self._token = None if token is None else token.get_secret_value()
        self._host = host
        self._is_local = is_loopback(host)
        if self._token is None and not self._is_local:
            raise ConfigurationError(
                f"monitor_host is {host}, where others can reach it: set monitor_token to a secret "
                f"of at least 16 characters, or leave the host at 127.0.0.1"
            )
        if self._token is None and settings.monitor_writable:
            raise ConfigurationError(
                "monitor_writable lets rules be disabled from outside: set monitor_token to a "
                "secret of at least 16 characters, too"
            )

    def is_called_rightly(self, host: str | None) -> bool:
        """Return whether the Host header names this server.

        This check defeats DNS rebinding, where a page of another site makes its own name resolve to
        this address. On loopback only loopback names are accepted. Otherwise the configured address
        or name is accepted, or any address if the server listens on all of them.
        """
        if not host:
            return False
        name = _without_port(host).lower()
        if is_loopback(name) or name == self._host.lower():
            return True
        return not self._is_local and _is_address(name)

    def is_known(self, authorization: str | None) -> bool:
        """Return whether the Authorization header has the token, if one is needed."""
        return self._token is None or self.is_proven(authorization)

    def is_proven(self, authorization: str | None) -> bool:
        """Return whether a token is set and the Authorization header has it.

        A request that has the token does not come from a foreign page, so its Host header doesn't
        matter.
        """
        if self._token is None:
            return False
        scheme, _, given = (authorization or "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return is_right and scheme.lower() == "bearer"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
