"""The inside of a sandbox's network namespace: its routes and rules, and sockets that are opened there.

A child process enters the namespace, does what is to be done, sends the sockets to its parent, and ends. No process of
ours stays inside. The agent never has the capabilities that this takes: they are those of the owner of the namespace.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd_network import netlink

OWN4: Final = "192.0.0.8"
"""The sandbox's own IPv4 address: the dummy address of RFC 7600, which is nobody's anywhere."""
OWN6: Final = "fd00:7361:6e64::1"
"""Its own IPv6 address; a unique local one, so that programs prefer IPv4 where a name has both."""
_SOMEWHERE6: Final = "2606:4700:4700::1111"
"""Some address of the internet, to ask for the route there; nothing is sent."""
_USER_OF, _OWNER_OF = 0xB701, 0xB704
"""ioctl NS_GET_USERNS and NS_GET_OWNER_UID (ioctl_ns(2))."""
_GET_FLAGS: Final = 0x8913
"""ioctl SIOCGIFFLAGS (netdevice(7))."""
_SETUP_SECONDS: Final = 10.0
_IP_TRANSPARENT, _IPV6_TRANSPARENT = 19, 75
_WHOLE6: Final = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
_BACKLOG: Final = 256
_DNS: Final = 53
_MOST_DESCRIPTORS: Final = 64
_CAPABILITIES_3: Final = 0x20080522
"""The version of capset(2)."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NamespaceError(OSError):
    """The sandbox's network can't be set up on this host."""


@dataclass(frozen=True)
class Doors:
    """The sockets inside that the forwarder serves. The IPv6 ones are there where the host has such a route."""

    streams: tuple[socket.socket, ...]
    datagrams: tuple[socket.socket, ...]


@dataclass(frozen=True)
class Namespace:
    """A network namespace, and the user namespace that it belongs to, as open descriptors."""

    network: int
    user: int
    owner: int
    """The user on the host that the user namespace belongs to."""

    @classmethod
    def of(cls, pid: int) -> "Namespace":
        """Of a process. Raises `OSError`."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        user = fcntl.ioctl(network, _USER_OF)
        number = bytearray(4)
        fcntl.ioctl(user, _OWNER_OF, number)
        return cls(network, user, struct.unpack("=I", number)[0])

    def open_doors(self, loopback: Iterable[tuple[str, int]]) -> Doors:
        """Set the namespace up, also once more. `loopback` are addresses of loopback that lead out.

        Raises `NamespaceError`.
        """
        six = netlink.route_type(_SOMEWHERE6) == netlink.UNICAST
        opened = self._inside(lambda: _open_doors(list(loopback), six=six))
        streams = tuple(one for one in opened if one.type == socket.SOCK_STREAM)
        return Doors(streams, tuple(one for one in opened if one.type == socket.SOCK_DGRAM))

    def open_sockets(self, count: int) -> list[socket.socket]:
        """TCP sockets that connect to what listens inside. Raises `NamespaceError`."""
        return self._inside(lambda: [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)])

    def _inside(self, act: Callable[[], Sequence[socket.socket]]) -> list[socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            child = os.fork()
            if child == 0:
                self._become(theirs, act)
            theirs.close()
            said, descriptors, _, _ = socket.recv_fds(ours, 1024, _MOST_DESCRIPTORS)
            os.waitpid(child, 0)
        if said != b"ok":
            raise NamespaceError(said.decode(errors="replace") or "the child in the namespace was killed")
        return [socket.socket(fileno=one) for one in descriptors]

    def _enter(self) -> None:
        for namespace in (self.user, self.network):
            if _LIBC.setns(namespace, 0) != 0:
                raise OSError(ctypes.get_errno(), "can't enter: " + os.strerror(ctypes.get_errno()))

    def _become(self, answer: socket.socket, act: Callable[[], Sequence[socket.socket]]) -> None:
        """Never returns."""
        try:
            self._enter()
            found = act()
            socket.send_fds(answer, [b"ok"], [one.fileno() for one in found])
        except OSError as error:
            answer.send(f"{type(error).__name__}: {error}".encode()[:1000])
        finally:
            sys.stderr.flush()
            os._exit(0)


def give_up_capabilities() -> None:
    """All that this process has here; in a namespace of its own it has them again. Raises `OSError`."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(none)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _await_loopback() -> None:
    """Wait until bubblewrap has set `lo` up, at most `_SETUP_SECONDS`.

    Set up by us first, `lo` gets 127.0.0.1 from the kernel; bubblewrap then fails to add it, and the sandbox with it.
    """
    deadline = time.monotonic() + _SETUP_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        while time.monotonic() < deadline:
            answer = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sH14x", b"lo", 0))
            if struct.unpack("16sH14x", answer)[1] & 1:
                return
            select.select([], [], [], 0.002)


def _open_doors(loopback: Sequence[tuple[str, int]], *, six: bool) -> list[socket.socket]:
    _await_loopback()
    netlink.bring_up_loopback()
    found = _open_family(socket.AF_INET, loopback)
    _lead_here(OWN4)
    if not Path("/proc/net/if_inet6").exists():
        return found
    found += _open_family(socket.AF_INET6, loopback)
    if six:
        _lead_here(OWN6)
    return found


def _lead_here(own: str) -> None:
    for step in (netlink.add_address, netlink.route_everything_here):
        with suppress(FileExistsError):
            step(own)


def _open_family(family: socket.AddressFamily, loopback: Sequence[tuple[str, int]]) -> list[socket.socket]:
    six = family == socket.AF_INET6
    here, own, whole = ("::1", OWN6, _WHOLE6) if six else ("127.0.0.1", OWN4, "255.255.255.255")
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.setsockopt(*((socket.IPPROTO_IPV6, _IPV6_TRANSPARENT) if six else (socket.SOL_IP, _IP_TRANSPARENT)), 1)
    stream.bind((here, 0))
    stream.listen(_BACKLOG)
    rules = netlink.Redirections(family, here, stream.getsockname()[1])
    for address, port in {(here, _DNS), *loopback}:
        if (":" in address) == six:
            rules.take(address, port)
    rules.leave(here, whole if six else "255.0.0.0")
    rules.leave(own, whole)
    rules.take_the_rest()
    rules.install()
    return [stream, _open_dns(family, six=six)]


def _open_dns(family: socket.AddressFamily, *, six: bool) -> socket.socket:
    """Every address is delivered here, so that this one socket is the name server at all of them."""
    names = socket.socket(family, socket.SOCK_DGRAM)
    if six:
        names.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        names.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        names.setsockopt(socket.SOL_IP, 8, 1)  # IP_PKTINFO
    names.bind(("::" if six else "0.0.0.0", _DNS))  # noqa: S104  # of the namespace, which leads nowhere
    return names
