"""Checks of who asks a server, against pages of other sites that pretend to be it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
"""The default address, which only programs of this machine reach."""


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine reach an address.

    Args:
        host: name or IP address.

    Examples:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
        [True, True, True, False, False]
    """
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_asked_for(header: str | None, host: str, port: int) -> bool:
    """Return True if a request's `Host` names this server.

    A page of another site can let its own name lead to this machine (DNS rebinding) and then read what the server
    answers. Its name stays in `Host`. An IP address there is of no other site, if the server is open to others.

    Args:
        header: the request's `Host`; None if it has none.
        host: the address that the server listens on.
        port: the port that it listens on.

    Examples:
        >>> is_asked_for("localhost:6010", "127.0.0.1", 6010), is_asked_for("evil.example:6010", "127.0.0.1", 6010)
        (True, False)
    """
    name, _, given = (header or "").rpartition(":")
    if not given.isdecimal() or name.endswith(":"):  # port 80 is not written
        name, given = header or "", "80"
    name = name.lower().removeprefix("[").removesuffix("]")
    if int(given) != port:
        return False
    if is_loopback(host):
        return is_loopback(name)
    return name in {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()} or _is_address(
        name
    )


def is_of_another_site(headers: Mapping[str, str]) -> bool:
    """Return True if a page of another site loads this address in the background, as current browsers say.

    Args:
        headers: the request's headers.

    Examples:
        >>> is_of_another_site({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})
        True
    """
    return headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Mode") != "navigate"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
