"""Check whether a host name or address is a loopback address."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Return whether only this computer can reach a server that listens on a host.

    Accepted are ``localhost`` in any case, ``127.0.0.0/8``, ``::1``, also in brackets as in a URL,
    and their IPv4-mapped IPv6 forms (``::ffff:127.0.0.1``). No other name is accepted, whatever it
    resolves to.
    """
    if host.lower() == "localhost":
        return True
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
