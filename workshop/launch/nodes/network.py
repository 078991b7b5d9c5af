"""Which network leads to the other nodes: interfaces by name, and their IPv4 addresses.

A node often has several networks: one to log in by, one for files, a fast one for the ranks. The site's
file names the last (`SiteSpec.interface`). What listens, listens on that one's address and on no other.
"""

from __future__ import annotations

import fcntl
import socket
import struct

from workshop.site.interfaces import interface_environment, resolved

_SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface
_NAME_BYTES = 256


def interfaces() -> dict[str, str]:
    """IPv4 address of each network of this machine that has one, by name (as `ip link` names it)."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _index, name in socket.if_nameindex():
            request = struct.pack(f"{_NAME_BYTES}s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address_of(interface: str) -> str:
    """The IPv4 address of the first network that ``interface`` means (`site.interfaces.resolved`).

    Raises ValueError, with the networks that this machine has, where none of them has an address.
    """
    found = interfaces()
    for name in resolved(interface):
        if name in found:
            return found[name]
    known = ", ".join(f"{name} ({address})" for name, address in found.items()) or "none"
    raise ValueError(
        f"no network {interface!r} with an IPv4 address on {socket.gethostname()}; it has {known}"
    )


def interface_towards(peer: str) -> str:
    """The name of the network by which packets leave for the IPv4 address ``peer``.

    Raises ValueError when there is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((peer, 9))  # of a datagram socket: sends nothing, only chooses the way
        except OSError as error:
            raise ValueError(
                f"no way from {socket.gethostname()} to {peer} ({error.strerror}); "
                "name the network of the ranks as `interface` in the site's file"
            ) from None
        ours = asker.getsockname()[0]
    return next((name for name, address in interfaces().items() if address == ours), "lo")


def collectives_on(interface: str) -> dict[str, str]:
    """The variables that keep gloo's, NCCL's and torch's own connections on this network, or on these."""
    return interface_environment(interface, [name for name in resolved(interface) if name in interfaces()])
