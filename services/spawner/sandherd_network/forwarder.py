"""The forwarder of one sandbox: a program on the host that makes the connections which the sandbox asks for.

    python -I -S forwarder.py <folder of the run>

It reads `network.json` there (see `policy`), waits until bubblewrap has said in `info` which process is the sandbox,
sets its network namespace up, lets it begin by a byte into `gate`, and serves it until it has ended. It listens at
`network.sock` for the spawner (see `port_publisher`). Each refused destination is named once on standard error. Its
exit status is 0 when there is nothing more to be served; after another one it is to be started again.
"""

import ipaddress
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

if not __package__:  # run as a program: nothing but the standard library is found
    sys.path.insert(0, str(Path(__file__).parent.parent))

from sandherd_network import netlink
from sandherd_network.connections import MOST, Connections, connecting
from sandherd_network.loop import READ, Loop
from sandherd_network.namespace import Namespace, give_up_capabilities
from sandherd_network.policy import Decisions, NetworkPolicy, literal, plain
from sandherd_network.port_publisher import Publisher
from sandherd_network.resolver import Resolver

HOSTS: Final = Path("/etc/hosts")
_LOOK: Final = 0.003
_SPARE_DESCRIPTORS: Final = 96
_MOST_NAMED: Final = 200
_FOR_EVER: Final = float("inf")


def main() -> int:
    """Set up, and serve."""
    os.chdir(sys.argv[1])
    policy = NetworkPolicy.from_json(Path("network.json").read_text())
    decisions = Decisions(policy)
    _remember_hosts(decisions)
    publisher = Publisher.listen("network.sock")
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pid = _sandbox()
    if pid is None:
        return 0
    try:
        _serve(pid, decisions, publisher)
    except OSError as error:
        _give_up(pid, log, f"sandherd: this host does not let a sandbox have a network of its own: {error}")
    return 0


def _sandbox() -> int | None:
    """The sandbox's first process, once bubblewrap has said it; None if it has ended before."""
    while not Path("exit").exists() and os.getppid() != 1:
        try:
            return int(json.loads(Path("info").read_text())["child-pid"])
        except (OSError, ValueError):
            time.sleep(_LOOK)  # noqa: TID251  # a program without an event loop waits for another program's file
    return None


def _give_up(pid: int, log: int, why: str) -> None:
    """Without its network no sandbox begins: what it would wait for never comes."""
    os.write(log, f"{why}\n".encode())
    os.kill(pid, signal.SIGKILL)


def _serve(pid: int, decisions: Decisions, publisher: Publisher) -> None:
    sandbox = os.pidfd_open(pid)
    namespace = Namespace.of(pid)
    gate = os.open("gate", os.O_WRONLY | os.O_NONBLOCK)
    _be(namespace.owner)
    doors = namespace.open_doors(_loopback(decisions))
    os.write(gate, b"\n")
    os.close(gate)
    loop = Loop()
    connections = Connections(loop, _most())
    resolver = Resolver(loop, decisions)
    dialer = Dialer(loop, decisions)
    for door in doors.streams:
        connections.serve(door, dialer.dial)
    for server in doors.datagrams:
        resolver.serve(server)
    publisher.serve(loop, connections, namespace)
    loop.watch(sandbox, READ, lambda _: loop.stop())
    loop.run()


def _be(owner: int) -> None:
    """The owner of the namespaces: who else but root may enter them. From here on without capabilities."""
    if owner not in {0, os.geteuid()}:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    if os.geteuid() != 0:
        give_up_capabilities()


def _most() -> int:
    """How many connections there are descriptors for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = min(hard, 2 * MOST + _SPARE_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, min(MOST, (wanted - _SPARE_DESCRIPTORS) // 2))


def _remember_hosts(decisions: Decisions) -> None:
    """Names of the policy that this host knows without asking anybody; a sandbox sees the same file."""
    decisions.remember("localhost", [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")], _FOR_EVER)
    try:
        lines = HOSTS.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        words = line.partition("#")[0].split()
        if words and (address := literal(words[0])):
            for name in words[1:]:
                decisions.remember(name.lower().rstrip("."), [address], _FOR_EVER)


def _loopback(decisions: Decisions) -> list[tuple[str, int]]:
    """Endpoints at the host's loopback. They have to be known before: the rest of loopback is the sandbox's own."""
    return [(str(address), port) for address, port in decisions.fixed() if address.is_loopback]


class Dialer:
    """From a connection of the sandbox to one of the host, if the policy has nothing against it."""

    def __init__(self, loop: Loop, decisions: Decisions) -> None:
        self._loop, self._decisions = loop, decisions
        self._named: set[tuple[str, int]] = set()

    def dial(self, accepted: socket.socket) -> socket.socket | None:
        """See `connections.Dial`. The sandbox's destination is our own end's address."""
        host, port = accepted.getsockname()[:2]
        address = plain(ipaddress.ip_address(host.partition("%")[0]))
        if why := self._refusal(address, port):
            self._name(str(address), port, why)
            return None
        return self._connect(str(address), port)

    def _refusal(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str | None:
        if why := self._decisions.refusal(address, port, self._loop.now):
            return why
        # Also a public address is this host's own if it has it. Endpoints may be there.
        if self._decisions.is_endpoint(address, port, self._loop.now):
            return None
        kind = netlink.route_type(str(address))
        return None if kind in {netlink.UNICAST, None} else "an address of this host, or of many"

    def _connect(self, host: str, port: int) -> socket.socket:
        return connecting(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))

    def _name(self, host: str, port: int, why: str) -> None:
        if len(self._named) < _MOST_NAMED and (host, port) not in self._named:
            self._named.add((host, port))
            sys.stderr.write(f"refused: {host} port {port}: {why}\n")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
