"""One check decides whether an address is reached from this computer alone."""

from __future__ import annotations

import ast
import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import activedb
from activedb.loopback import is_loopback

ROOT = Path(activedb.__file__).parent


@given(st.ip_addresses())
def test_address_is_loopback_as_the_standard_has_it(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    expected = (mapped or address).is_loopback
    assert is_loopback(str(address)) == expected
    assert is_loopback(f"[{address}]") == expected


@given(st.integers(0, 2**24 - 1))
def test_every_address_of_127_is_loopback_also_as_ipv6_writes_it(number: int) -> None:
    address = ipaddress.IPv4Address((127 << 24) + number)
    assert is_loopback(str(address))
    assert is_loopback(f"::ffff:{address}")


@given(st.text())
def test_names_are_not_loopback(name: str) -> None:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        assert is_loopback(name) == (name.lower() == "localhost")


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "localhost.evil.example", "127.0.0.1.evil.example", "[127.0.0.1"]
)
def test_what_only_looks_like_loopback_is_not(host: str) -> None:
    assert not is_loopback(host)


def test_there_is_one_check() -> None:
    """No other module asks an address whether it is loopback."""
    asking = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "is_loopback":
                asking.add(path.relative_to(ROOT).as_posix())
    assert asking == {"loopback.py"}
