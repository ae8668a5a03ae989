"""Sets up a sandbox's network namespace: its routes, its rules, and the sockets in it.

A child process enters the namespace, does the work, sends the sockets to its parent, and ends, so that no process of
the forwarder stays inside. The agent never has the required capabilities, which only the namespace's owner has.
"""

from __future__ import annotations

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

from sandherd_network import netlink

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

OWN4: Final = "192.0.0.8"
"""The sandbox's own IPv4 address: the dummy address of RFC 7600, which is assigned to no host."""
OWN6: Final = "fd00:7361:6e64::1"
"""The sandbox's own IPv6 address. It is unique local, so that programs prefer IPv4 if a name has both."""
_PUBLIC_ADDRESS6: Final = "2606:4700:4700::1111"
"""A public address, to look up its route; nothing is sent to it."""
_GET_USER_NAMESPACE, _GET_OWNER_UID = 0xB701, 0xB704
"""ioctl NS_GET_USERNS and NS_GET_OWNER_UID (ioctl_ns(2))."""
_GET_FLAGS: Final = 0x8913
"""ioctl SIOCGIFFLAGS (netdevice(7))."""
_LOOPBACK_TIMEOUT_SECONDS: Final = 10.0
_IP_TRANSPARENT, _IPV6_TRANSPARENT = 19, 75
"""Socket options, with which a socket accepts connections to any address."""
_HOST_MASK6: Final = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
_BACKLOG: Final = 256
_DNS: Final = 53
_MAX_DESCRIPTORS: Final = 64
"""The maximum number of sockets that a child process sends."""
_CAPABILITIES_3: Final = 0x20080522
"""`_LINUX_CAPABILITY_VERSION_3` of capset(2)."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NamespaceError(OSError):
    """The sandbox's network can't be set up on this host."""


class NamespaceSockets:
    """The sockets in the namespace that the forwarder serves. Sockets for IPv6 exist only if the kernel has IPv6."""

    def __init__(self, streams: tuple[socket.socket, ...], datagrams: tuple[socket.socket, ...]) -> None:
        self.streams, self.datagrams = streams, datagrams


class Namespace:
    """A network namespace, and the user namespace that it belongs to, as open descriptors.

    `owner` is the host uid that owns the user namespace.
    """

    def __init__(self, network: int, user: int, owner: int) -> None:
        self.network, self.user, self.owner = network, user, owner

    @classmethod
    def of_process(cls, pid: int) -> Namespace:
        """The namespaces of a process. Raises `OSError`."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        user = fcntl.ioctl(network, _GET_USER_NAMESPACE)
        uid = bytearray(4)
        fcntl.ioctl(user, _GET_OWNER_UID, uid)
        return cls(network, user, struct.unpack("=I", uid)[0])

    def set_up(self, loopback: Iterable[tuple[str, int]]) -> NamespaceSockets:
        """Set the namespace up; safe to repeat. `loopback`: loopback addresses and ports to forward.

        Raises `NamespaceError`.
        """
        is_ipv6 = netlink.route_type(_PUBLIC_ADDRESS6) == netlink.UNICAST
        sockets = self._run_inside(lambda: _set_up(list(loopback), is_ipv6=is_ipv6))
        streams = tuple(sock for sock in sockets if sock.type == socket.SOCK_STREAM)
        return NamespaceSockets(streams, tuple(sock for sock in sockets if sock.type == socket.SOCK_DGRAM))

    def open_sockets(self, count: int) -> list[socket.socket]:
        """Open TCP sockets in the namespace, to connect to servers in the sandbox. Raises `NamespaceError`."""
        return self._run_inside(lambda: [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)])

    def _run_inside(self, open_sockets_inside: Callable[[], Sequence[socket.socket]]) -> list[socket.socket]:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with parent_end, child_end:
            child = os.fork()
            if child == 0:
                self._run_child(child_end, open_sockets_inside)
            child_end.close()
            status, descriptors, _, _ = socket.recv_fds(parent_end, 1024, _MAX_DESCRIPTORS)
            os.waitpid(child, 0)
        if status != b"ok":
            raise NamespaceError(status.decode(errors="replace") or "the child in the namespace was killed")
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def _enter(self) -> None:
        for namespace in (self.user, self.network):
            if _LIBC.setns(namespace, 0) != 0:
                raise OSError(ctypes.get_errno(), "can't enter: " + os.strerror(ctypes.get_errno()))

    def _run_child(self, parent: socket.socket, open_sockets_inside: Callable[[], Sequence[socket.socket]]) -> None:
        """Run in the child: send the sockets or the error to the parent, and exit. Never returns."""
        try:
            self._enter()
            sockets = open_sockets_inside()
            socket.send_fds(parent, [b"ok"], [sock.fileno() for sock in sockets])
        except OSError as error:
            parent.send(f"{type(error).__name__}: {error}".encode()[:1000])
        finally:
            sys.stderr.flush()
            os._exit(0)


def drop_capabilities() -> None:
    """Drop all capabilities of this process. It gets them again in a user namespace that it owns. Raises `OSError`."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(none)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _await_loopback() -> None:
    """Wait until bubblewrap has set `lo` up, at most `_LOOPBACK_TIMEOUT_SECONDS`.

    If this program set it up first, the kernel would add 127.0.0.1; bubblewrap would then fail to add that address, and
    would not start the sandbox.
    """
    deadline = time.monotonic() + _LOOPBACK_TIMEOUT_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        while time.monotonic() < deadline:
            reply = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sH14x", b"lo", 0))
            if struct.unpack("16sH14x", reply)[1] & 1:  # IFF_UP
                return
            select.select([], [], [], 0.002)


def _set_up(loopback: Sequence[tuple[str, int]], *, is_ipv6: bool) -> list[socket.socket]:
    _await_loopback()
    netlink.enable_loopback()
    sockets = _open_family(socket.AF_INET, loopback)
    _route_to_loopback(OWN4)
    if not os.access("/proc/net/if_inet6", os.F_OK):
        return sockets
    sockets += _open_family(socket.AF_INET6, loopback)
    if is_ipv6:
        _route_to_loopback(OWN6)
    return sockets


def _route_to_loopback(own_address: str) -> None:
    for step in (netlink.add_address, netlink.route_all_to_loopback):
        with suppress(FileExistsError):
            step(own_address)


def _open_family(family: socket.AddressFamily, loopback: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Open the two sockets of an address family, and redirect its connections to the first one."""
    is_ipv6 = family == socket.AF_INET6
    loopback_address, own_address, host_mask = (
        ("::1", OWN6, _HOST_MASK6) if is_ipv6 else ("127.0.0.1", OWN4, "255.255.255.255")
    )
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.setsockopt(*((socket.IPPROTO_IPV6, _IPV6_TRANSPARENT) if is_ipv6 else (socket.SOL_IP, _IP_TRANSPARENT)), 1)
    stream.bind((loopback_address, 0))
    stream.listen(_BACKLOG)
    rules = netlink.Redirections(family, loopback_address, stream.getsockname()[1])
    for address, port in {(loopback_address, _DNS), *loopback}:
        if (":" in address) == is_ipv6:
            rules.redirect(address, port)
    rules.exempt(loopback_address, host_mask if is_ipv6 else "255.0.0.0")
    rules.exempt(own_address, host_mask)
    rules.redirect_all_other()
    rules.install()
    return [stream, _open_dns(family, is_ipv6=is_ipv6)]


def _open_dns(family: socket.AddressFamily, *, is_ipv6: bool) -> socket.socket:
    """The socket of the name server. It has all addresses, because packets to any address stay in the namespace."""
    name_server = socket.socket(family, socket.SOCK_DGRAM)
    if is_ipv6:
        name_server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        name_server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        name_server.setsockopt(socket.SOL_IP, 8, 1)  # IP_PKTINFO
    name_server.bind(("::" if is_ipv6 else "0.0.0.0", _DNS))  # noqa: S104  # in the namespace, which no other host reaches
    return name_server
