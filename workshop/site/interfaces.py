"""The network interfaces of this machine, read from the kernel: their names, whether they are up, addresses.

gloo and NCCL take the name of an interface (``GLOO_SOCKET_IFNAME``, ``NCCL_SOCKET_IFNAME``). A name that does
not exist ends in an error far from its cause; without a name gloo takes what the host's name resolves to,
which on many machines is 127.0.1.1: then ranks of two nodes wait for each other for ever.

A site names its networks in NCCL's notation: ``ib0``; ``hsn0,hsn1`` (both); ``hsn`` (all that begin so, where
none is called just that); ``=ib0`` (exactly that one); ``^docker0,virbr`` (all that do not begin so). gloo
and torch's own connections know names only, so what the site says is made into names here, on the node.

Source: NVIDIA, *NCCL User Guide*, "NCCL_SOCKET_IFNAME".
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_SIOCGIFADDR, _SIOCGIFFLAGS = 0x8915, 0x8913  # netdevice(7)
_IFF_UP = 1
INET6 = Path("/proc/net/if_inet6")


def interfaces() -> dict[str, bool]:
    """Name of each interface, and whether it is up."""
    return {name: bool(_flags(name) & _IFF_UP) for _, name in socket.if_nameindex()}


def resolved(text: str) -> list[str]:
    """The networks of this machine that a site's ``interface`` means, in its order; [] where it means none.

    Loopback is among them only where it is named.
    """
    if not text:
        return []
    there = [name for _, name in socket.if_nameindex()]
    entries = text.removeprefix("^").removeprefix("=").split(",")
    exact = "=" in text[:2]

    def meant(entry: str) -> list[str]:
        if exact or entry in there:
            return [name for name in there if name == entry]
        return [name for name in there if name.startswith(entry)]

    if not text.startswith("^"):
        return list(dict.fromkeys(name for entry in entries for name in meant(entry)))
    left_out = tuple(entries)
    up = interfaces()
    return [
        name
        for name in there
        if name != "lo" and up.get(name) and not (name in entries if exact else name.startswith(left_out))
    ]


def missing_interfaces(text: str) -> list[str]:
    """Those entries of a site's ``interface`` that mean no network of this machine."""
    if text.startswith("^"):
        return [] if resolved(text) else [text]
    sign = "=" * text.startswith("=")
    return [entry for entry in text.removeprefix("=").split(",") if not resolved(sign + entry)]


def interface_environment(text: str, names: Sequence[str] = ()) -> dict[str, str]:
    """The variables by which NCCL, gloo and torch's own connections take a site's networks.

    names: what ``text`` means on the node, from `resolved`; without them ``text`` is taken at its word, and
    where it is no list of names (``^docker0``) only NCCL is told.
    """
    if not text:
        return {}
    plain = [] if text.startswith("^") else text.removeprefix("=").split(",")
    chosen = list(names) or plain
    variables = {"NCCL_SOCKET_IFNAME": text}
    if chosen:  # torch's own connections take one network
        variables |= {"GLOO_SOCKET_IFNAME": ",".join(chosen), "TP_SOCKET_IFNAME": chosen[0]}
    return variables


def ipv4_of(name: str) -> str:
    """The IPv4 address of one interface; "" where it has none, or is not there."""
    try:
        return socket.inet_ntoa(_ask(name, _SIOCGIFADDR)[20:24])
    except OSError:
        return ""


def address_of(name: str) -> str:
    """An address of the interface, IPv4 first; "" where it has none that others can reach."""
    if ipv4 := ipv4_of(name):
        return ipv4
    try:
        rows = [line.split() for line in INET6.read_text().splitlines()]
    except OSError:
        return ""
    its = [ipaddress.IPv6Address(bytes.fromhex(row[0])) for row in rows if row[-1] == name]
    return next((str(address) for address in its if not address.is_link_local), "")


def own_address() -> str:
    """What this host's own name resolves to: the address that gloo and torchrun take if nobody says another.

    Raises OSError where the name resolves to nothing.
    """
    return socket.gethostbyname(socket.gethostname())


def is_own(host: str) -> bool:
    """Whether a host's name or address is one of this machine, on whichever of its cards."""
    try:
        addresses = set(socket.gethostbyname_ex(host)[2])
    except OSError:
        return False
    own = {ipv4_of(name) for name in interfaces()}
    return bool(addresses & own) or any(address.startswith("127.") for address in addresses)


def interface_towards(peer: str) -> str:
    """The name of the interface by which packets leave for a host's name or IPv4 address.

    Raises:
        ValueError: there is no way to it; or it is another host's name that leads to loopback here.
    """
    ours = address_towards(peer)
    return next((name for name in interfaces() if ipv4_of(name) == ours), "lo")


def address_towards(peer: str) -> str:
    """This machine's IPv4 address on the way to a host. Raises as `interface_towards`."""
    do = "name the network of the ranks as `interface` in the site's file, or with --interface"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((peer, 9))  # of a datagram socket: sends nothing, only chooses the way
        except OSError as error:
            raise ValueError(
                f"no way from {socket.gethostname()} to {peer} ({error.strerror}); {do}"
            ) from None
        ours: str = asker.getsockname()[0]
    if ours.startswith("127.") and not (peer.startswith("127.") or peer == "localhost"):
        raise ValueError(
            f"on {socket.gethostname()} the name {peer} leads to loopback ({socket.gethostbyname(peer)}), "
            f"where no other node looks; {do}, or correct the name's line in /etc/hosts"
        )
    return ours


def chosen(text: str, towards: str = "") -> tuple[str, ...]:
    """The networks that a site's ``interface`` means here (`resolved`), of those that have an IPv4 address.

    Args:
        text: as in the site's file; "" for the network that leads to ``towards``.
        towards: a host of the ranks' network. Of all that ``^`` leaves only the one that leads there is
            taken, or the first where no host is known: another may lead nowhere.

    Raises:
        ValueError: none is left; the message names those that this machine has.
    """
    if not text:
        return (interface_towards(towards),)
    meant = [name for name in resolved(text) if ipv4_of(name)]
    if not meant:
        own = {name: ipv4_of(name) for name in interfaces()}
        known = ", ".join(f"{name} ({address})" for name, address in own.items() if address) or "none"
        raise ValueError(
            f"no network {text!r} with an IPv4 address on {socket.gethostname()}; it has {known}"
        )
    if text.startswith("^"):
        way = interface_towards(towards) if towards else meant[0]
        meant = [way] if way in meant else meant[:1]
    return tuple(meant)


def address_on(text: str, towards: str = "") -> str:
    """This machine's IPv4 address on the first network that is meant. Arguments and errors as `chosen`."""
    return ipv4_of(chosen(text, towards)[0])


def collectives_on(text: str, towards: str = "") -> dict[str, str]:
    """The variables that keep gloo's, NCCL's and torch's own connections on networks; as `chosen`."""
    names = chosen(text, towards)
    return interface_environment(text or names[0], names)


def _flags(name: str) -> int:
    try:
        return int(struct.unpack("H", _ask(name, _SIOCGIFFLAGS)[16:18])[0])
    except OSError:  # gone since it was listed
        return 0


def _ask(name: str, what: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, what, struct.pack("256s", name.encode()[:15]))
