"""The forwarder of one sandbox: a program on the host that opens the connections that the sandbox requests.

    python -I -S forwarder.py <folder of the run> [<descriptor of a connection to the shim>]

It reads `network.json` in that folder (see `policy`), waits until bubblewrap has written the sandbox's process id to
`info`, and sets up the sandbox's network namespace. Then it starts the sandbox by writing a byte to `gate`, and serves
it until it has ended. It listens on `network.sock` for the spawner (see `port_publisher`). The first 200 refused
destinations are logged, each once, on standard error. Its exit status is 0 when there is nothing more to serve; after
any other status it must be restarted.

The shim starts the forwarder, or the fork server of forwarders forks it, where `preload` was called. A forked forwarder
has a connection to the shim: it ends with the shim, and writes the exit status 0 to the connection.

A sandbox starts after its forwarder, so this program loads few modules: neither `typing`, `dataclasses` nor `pathlib`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress

if not __package__:  # run as a program: nothing but the standard library is found
    sys.path.insert(0, __file__.rpartition("/sandherd_network/")[0])

from sandherd_network import netlink
from sandherd_network.connections import MAX_CONNECTIONS, Connections, connect
from sandherd_network.event_loop import READ, EventLoop
from sandherd_network.namespace import Namespace, drop_capabilities
from sandherd_network.policy import Decisions, NetworkPolicy, parse_address, unmap_ipv4
from sandherd_network.port_publisher import PortPublisher
from sandherd_network.resolver import Resolver

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

HOSTS: Final = "/etc/hosts"
_POLL_SECONDS: Final = 0.003
_SPARE_DESCRIPTORS: Final = 96
"""The number of descriptors that are reserved for other purposes than connections."""
_MAX_LOGGED_REFUSALS: Final = 200
_NEVER_EXPIRES: Final = float("inf")


def main() -> int:
    """Set the network up, and serve it until the sandbox has ended. Returns the exit status."""
    shim = int(sys.argv[2]) if sys.argv[2:] else None
    _forward(sys.argv[1], shim)
    if shim is not None:
        with suppress(OSError):  # the shim has ended
            os.write(shim, b"0\n")
    return 0


def preload() -> None:
    """Load the modules that are otherwise loaded when a sandbox is served."""
    import encodings.idna  # noqa: F401  # used by `socket`


def _forward(run_folder: str, shim: int | None) -> None:
    os.chdir(run_folder)
    policy = NetworkPolicy.from_json(_read("network.json"))
    decisions = Decisions(policy)
    _remember_hosts(decisions)
    publisher = PortPublisher.listen("network.sock")
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pid = _wait_for_sandbox(shim)
    if pid is None:
        return
    try:
        _serve(pid, decisions, publisher)
    except OSError as error:
        _abort_sandbox(pid, log, f"sandherd: this host does not permit a separate network for a sandbox: {error}")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # `pathlib` is not loaded
        return file.read()


def _wait_for_sandbox(shim: int | None) -> int | None:
    """The id of the sandbox's first process, once bubblewrap has reported it; None if the sandbox or shim ended before.

    It also ends if the run's directory was removed (it then has no link), because no file can appear in it any more.
    """
    while not os.access("exit", os.F_OK) and os.stat(".").st_nlink and not _has_ended(shim):  # noqa: PTH116  # as above
        try:
            return int(json.loads(_read("info"))["child-pid"])
        except (OSError, ValueError):
            time.sleep(_POLL_SECONDS)  # noqa: TID251  # a program without an event loop waits for another program's file
    return None


def _has_ended(shim: int | None) -> bool:
    """Whether the shim has ended. It is the parent of this process, or else its end closes the connection."""
    return os.getppid() == 1 if shim is None else bool(select.select([shim], [], [], 0)[0])


def _abort_sandbox(pid: int, log: int, reason: str) -> None:
    """Kill the sandbox, because it would wait for its network forever, and write the reason to its log."""
    os.write(log, f"{reason}\n".encode())
    os.kill(pid, signal.SIGKILL)


def _serve(pid: int, decisions: Decisions, publisher: PortPublisher) -> None:
    sandbox = os.pidfd_open(pid)
    namespace = Namespace.of_process(pid)
    gate = os.open("gate", os.O_WRONLY | os.O_NONBLOCK)
    _become_owner(namespace.owner)
    sockets = namespace.set_up(_loopback_endpoints(decisions))
    os.write(gate, b"\n")
    os.close(gate)
    loop = EventLoop()
    connections = Connections(loop, _connection_limit())
    resolver = Resolver(loop, decisions)
    dialer = Dialer(loop, decisions)
    for listener in sockets.streams:
        connections.serve(listener, dialer.dial)
    for server in sockets.datagrams:
        resolver.serve(server)
    publisher.serve(loop, connections, namespace)
    loop.watch(sandbox, READ, lambda _: loop.stop())
    loop.run()


def _become_owner(owner: int) -> None:
    """Become the user who owns the namespaces, and may therefore enter them.

    Drops all capabilities, unless the owner is root.
    """
    if owner not in {0, os.geteuid()}:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    if os.geteuid() != 0:
        drop_capabilities()


def _connection_limit() -> int:
    """The maximum number of connections, given the limit of descriptors."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    descriptors = min(hard, 2 * MAX_CONNECTIONS + _SPARE_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    return max(1, min(MAX_CONNECTIONS, (descriptors - _SPARE_DESCRIPTORS) // 2))


def _remember_hosts(decisions: Decisions) -> None:
    """Remember the addresses of the policy's names in this host's hosts file, because sandboxes see the same file."""
    decisions.remember("localhost", [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")], _NEVER_EXPIRES)
    try:
        lines = _read(HOSTS).splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.partition("#")[0].split()
        if fields and (address := parse_address(fields[0])):
            for name in fields[1:]:
                decisions.remember(name.lower().rstrip("."), [address], _NEVER_EXPIRES)


def _loopback_endpoints(decisions: Decisions) -> list[tuple[str, int]]:
    """The policy's endpoints at loopback addresses of the host. Other loopback connections stay in the sandbox."""
    return [(str(address), port) for address, port in decisions.resolved_endpoints() if address.is_loopback]


class Dialer:
    """Opens a connection on the host for a connection of the sandbox, if the policy permits it."""

    def __init__(self, loop: EventLoop, decisions: Decisions) -> None:
        self._loop, self._decisions = loop, decisions
        self._logged_refusals: set[tuple[str, int]] = set()

    def dial(self, accepted: socket.socket) -> socket.socket | None:
        """See `connections.Dial`. The sandbox's destination is the local address of `accepted`."""
        host, port = accepted.getsockname()[:2]
        address = unmap_ipv4(ipaddress.ip_address(host.partition("%")[0]))
        if reason := self._refusal(address, port):
            self._log_refusal(str(address), port, reason)
            return None
        return self._connect(str(address), port)

    def _refusal(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str | None:
        if reason := self._decisions.refusal(address, port, self._loop.now):
            return reason
        # A public address may belong to this host. The sandbox may connect to it only if it is a declared endpoint.
        if self._decisions.is_endpoint(address, port, self._loop.now):
            return None
        kind = netlink.route_type(str(address))
        return None if kind in {netlink.UNICAST, None} else "not a unicast address of another host"

    def _connect(self, host: str, port: int) -> socket.socket:
        return connect(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))

    def _log_refusal(self, host: str, port: int, reason: str) -> None:
        if len(self._logged_refusals) < _MAX_LOGGED_REFUSALS and (host, port) not in self._logged_refusals:
            self._logged_refusals.add((host, port))
            sys.stderr.write(f"refused: {host} port {port}: {reason}\n")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
