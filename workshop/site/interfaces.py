"""The network interfaces of this machine, read from the kernel: their names, whether they are up, addresses.

gloo and NCCL take the name of an interface (``GLOO_SOCKET_IFNAME``, ``NCCL_SOCKET_IFNAME``). A name that does
not exist ends in an error far from its cause; without a name gloo takes what the host's name resolves to,
which on many machines is 127.0.1.1: then ranks of two nodes wait for each other for ever.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR, _SIOCGIFFLAGS = 0x8915, 0x8913  # netdevice(7)
_IFF_UP = 1
INET6 = Path("/proc/net/if_inet6")


def interfaces() -> dict[str, bool]:
    """Name of each interface, and whether it is up."""
    return {name: bool(_flags(name) & _IFF_UP) for _, name in socket.if_nameindex()}


def missing_interfaces(names: str) -> list[str]:
    """Those of the comma-separated ``names`` that this machine has not."""
    there = {name for _, name in socket.if_nameindex()}
    return [name for name in names.split(",") if name not in there]


def address_of(name: str) -> str:
    """An address of the interface, IPv4 first; "" where it has none that others can reach."""
    try:
        return socket.inet_ntoa(_ask(name, _SIOCGIFADDR)[20:24])
    except OSError:
        pass
    try:
        rows = [line.split() for line in INET6.read_text().splitlines()]
    except OSError:
        return ""
    found = [ipaddress.IPv6Address(bytes.fromhex(row[0])) for row in rows if row[-1] == name]
    return next((str(address) for address in found if not address.is_link_local), "")


def own_address() -> str:
    """What this host's own name resolves to: the address that gloo and torchrun take if nobody says another.

    Raises OSError where the name resolves to nothing.
    """
    return socket.gethostbyname(socket.gethostname())


def _flags(name: str) -> int:
    try:
        return int(struct.unpack("H", _ask(name, _SIOCGIFFLAGS)[16:18])[0])
    except OSError:  # gone since it was listed
        return 0


def _ask(name: str, what: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, what, struct.pack("256s", name.encode()[:15]))
