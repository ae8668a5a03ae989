"""Destinations that a sandbox can't reach: the host, private networks, metadata, other sandboxes."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.conftest import Eventually, PlanFor
from tests.integration.spawner.network.conftest import Sandbox, inside
from tests.integration.spawner.network.internet import HERE, OWN, PRIVATE, PRIVATE6, PUBLIC, Internet
from tests.integration.spawner.network.listeners import ABSTRACT
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = pytest.mark.timeout(900)

HOST = ("127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::", "10.99.0.1", OWN, "fd99::1", "localhost")
WAYS = (
    "::ffff:127.0.0.1", "::ffff:10.99.0.1", "::127.0.0.1", "64:ff9b::a63:1", "2130706433", "0x7f.1", "0177.0.0.1",
    "127.1", "10.25344001", "loop.test",
)  # fmt: skip
"""Other notations of the host's addresses."""
NEIGHBOURS = ("10.99.0.2", "10.1.515", "0x0a.1.2.3", "inner.test", "meta.test", "169.254.43518", "2002:a01:203::1")


@dataclass
class Services:
    """Services of the host, which no sandbox may reach."""

    process: "subprocess.Popen[str]"
    tcp: int
    udp: int


@pytest.fixture
async def services(net: Internet) -> AsyncIterator[Services]:
    """Start services on every address of the test's host."""
    net.use()
    command = [sys.executable, "-u", str(HERE / "listeners.py")]
    process = await asyncio.to_thread(
        subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    tcp, udp = map(int, process.stdout.readline().split())
    yield Services(process, tcp, udp)
    process.kill()
    process.communicate()


async def visited(services: Services) -> str:
    services.process.kill()
    out, _ = await asyncio.to_thread(services.process.communicate)
    return out


async def sees(services: Services, visitor: str) -> bool:
    """Whether the service reports this visitor; a datagram may be read later."""
    lines = services.process.stdout
    assert lines is not None
    return await asyncio.wait_for(asyncio.to_thread(lambda: any(line.strip() == visitor for line in lines)), PATIENCE)


def everything(services: Services, seconds: int = 20) -> str:
    """Code that tries every address of the host's service, and every private address of the world's.

    `seconds` limits each attempt that may get no response.
    """
    return f"""
at = {{}}
for host in {[*HOST]!r}: at[host] = ask(host, {services.tcp})
for host in {[*WAYS]!r}: at[host] = ask(host, {services.tcp}, seconds={seconds})
for host in {[*PRIVATE, *PRIVATE6]!r}: at[host] = ask(host, 13)
for host in {[*NEIGHBOURS]!r}: at[host] = ask(host, 13, seconds={seconds})
with socket.socket(socket.AF_UNIX) as one:
    try: one.connect({ABSTRACT!r}); at["abstract"] = one.recv(9).decode()
    except OSError as error: at["abstract"] = "refused: " + str(error)
for host, port in [("127.0.0.1", {services.udp}), ("10.99.0.1", {services.udp}), ("{OWN}", {services.udp}),
                   ("10.1.2.3", 9999), ("{PUBLIC}", 9999), ("255.255.255.255", 9999), ("224.0.0.1", 9999)]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try: one.sendto(b"x", (host, port))
        except OSError: pass
tell(at=at)
"""


async def test_host_and_private_networks_are_unreachable(sandbox: Sandbox, services: Services, net: Internet) -> None:
    """A sandbox reaches no loopback, private, link-local or metadata address, nor the host's own, in any notation.

    This holds over IPv4 and IPv6, for abstract sockets, and for datagrams to one, to many and to all. No attempt is
    left hanging.
    """
    found = await inside(await sandbox(), everything(services))
    assert {host: reply for host, reply in found["at"].items() if not reply.startswith("refused")} == {}
    assert await visited(services) == ""
    assert net.hits == []


async def test_same_attacks_succeed_in_the_hosts_network(sandbox: Sandbox, services: Services, net: Internet) -> None:
    """Mode `host` exposes the host, which shows that the attacks of the other test are effective."""
    found = await inside(await sandbox(mode="host"), everything(services, seconds=5))
    reached = {host for host, reply in found["at"].items() if reply in {"reached\n", "welcome\n"}}
    assert {*HOST, *PRIVATE, *PRIVATE6, "::ffff:127.0.0.1", "2130706433", "inner.test"} <= reached
    assert await sees(services, "visitor udp")
    hits = {"10.1.2.3 13", "169.254.169.254 13", "fd00:ec2::254 13", "udp 9999"}
    await eventually(lambda: hits <= set(net.hits), lambda: f"{net.hits}")  # a datagram may be read later


async def test_rebound_name_is_judged_by_its_address(sandbox: Sandbox, net: Internet) -> None:
    """Each connection is checked by its address: the first reply has a public address, the next one a private one."""
    found = await inside(
        await sandbox(),
        'tell(first=ask("rebound.test", 13), then=ask("rebound.test", 13), inner=ask("inner.test", 13))',
    )
    assert found["first"] == "welcome\n"
    assert all(found[name].startswith("refused") for name in ("then", "inner")), found
    assert net.hits == [f"{PUBLIC} 13"]


async def test_allowed_name_leads_to_no_private_address(sandbox: Sandbox, net: Internet) -> None:
    """The allow-list permits only public addresses, whatever the resolver returns for an allowed name."""
    runtime = await sandbox(mode="allow", allow=frozenset({"rebound.test", "inner.test", "meta.test", "10.1.2.3"}))
    found = await inside(
        runtime,
        'tell(first=ask("rebound.test", 13), rest=[ask(name, 13) for name in '
        '("rebound.test", "inner.test", "meta.test", "10.1.2.3")])',
    )
    assert found["first"] == "welcome\n"
    assert all(one.startswith("refused") for one in found["rest"]), found
    assert net.hits == [f"{PUBLIC} 13"]


async def test_sandbox_does_not_reach_another(sandbox: Sandbox, plan_for: PlanFor, eventually: Eventually) -> None:
    """A sandbox reaches neither another's port nor the host's port that leads to it; the host reaches that port."""
    runtime = await sandbox()
    await runtime.create(plan_for("sbx-two"))
    serve = "one = socket.create_server(('127.0.0.1', 8000))\nwhile True:\n    c, _ = one.accept(); c.sendall(b'two')"
    served = asyncio.create_task(inside(runtime, serve, "sbx-two"))
    url = (await runtime.address("sbx-two", 8000)).url
    port = int(url.rpartition(":")[2])

    async def answers() -> bool:
        return await asyncio.to_thread(_first, port) == b"two"

    await eventually(answers)
    attack = (
        f'tell(at=[ask("127.0.0.1", 8000), ask("127.0.0.1", {port}), ask("10.99.0.1", {port}), ask("::1", {port})])'
    )
    found = await inside(runtime, attack)
    assert all(one.startswith("refused") for one in found["at"]), found
    assert (await runtime.address("sbx-two", 8000)).url == url
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)


def _first(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as one:
            return one.recv(10)
    except OSError:
        return b""


async def test_network_namespace_cannot_be_changed_from_inside(sandbox: Sandbox, net: Internet) -> None:
    """A sandbox can create no raw or packet socket, route, address, rule, transparent socket or other namespace."""
    found = await inside(
        await sandbox(),
        f"""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def refused(act):
    try: act()
    except OSError as error: return True
    return False
def netlink(protocol, kind, payload):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as one:
        one.bind((0, 0)); one.send(struct.pack("=IHHII", 16 + len(payload), kind, 0x605, 1, 0) + payload)
        code = struct.unpack_from("=i", one.recv(4096), 16)[0]
        if code: raise OSError(-code, "netlink")
def option(level, number):
    with socket.socket() as one: one.setsockopt(level, number, 1)
def bind(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one: one.bind(("0.0.0.0", port))
def setns(path):
    with open(path) as one:
        if libc.setns(one.fileno(), 0): raise OSError(ctypes.get_errno(), "setns")
table = struct.pack("=HH", 13, 1) + b"sandherd" + bytes(4)
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0)
address = struct.pack("=BBBBI", 2, 32, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 99, 0, 1]))
tell(allowed=[name for name, act in dict(
    raw=lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), raw6=lambda: socket.socket(10, socket.SOCK_RAW, 58),
    packet=lambda: socket.socket(17, socket.SOCK_RAW, 0x0300), arp=lambda: socket.socket(17, socket.SOCK_DGRAM, 0x0608),
    route=lambda: netlink(0, 24, route), gone=lambda: netlink(0, 25, route), address=lambda: netlink(0, 20, address),
    link=lambda: netlink(0, 16, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)),
    rules=lambda: netlink(12, 10 << 8 | 2, struct.pack("!BBH", 2, 0, 0) + table),
    transparent=lambda: option(0, 19), mark=lambda: option(1, 36), dns=lambda: bind(53),
    network=lambda: setns("/proc/1/ns/net"),
).items() if not refused(act)], public=ask("{PUBLIC}", 13), private=ask("10.1.2.3", 13))
""",
    )
    assert found["allowed"] == []
    assert found["public"] == "welcome\n"
    assert found["private"].startswith("refused")


async def test_sandbox_cannot_use_up_the_hosts_connections(sandbox: Sandbox, plan_for: PlanFor) -> None:
    """Connections beyond a sandbox's limit are reset; another sandbox can connect, and later it can, too."""
    runtime = await sandbox()
    await runtime.create(plan_for("sbx-two"))
    flood = f"""
held, reset = [], 0
for _ in range(700):
    try:
        one = socket.create_connection(("{PUBLIC}", 7), 60)
        one.sendall(b"x"); ok = one.recv(1)
    except OSError: ok = b""
    if ok: held.append(one)
    else: reset += 1
tell(held=len(held), reset=reset)
"""
    found, other = await asyncio.gather(
        inside(runtime, f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n{flood}"),
        inside(runtime, f'tell(at=[ask("{PUBLIC}", 13) for _ in range(20)])', "sbx-two"),
    )
    assert (found["held"], found["reset"]) == (512, 188)
    assert other["at"] == ["welcome\n"] * 20
    again = await inside(runtime, f'tell(at=ask("{PUBLIC}", 13))')
    assert again["at"] == "welcome\n"


async def test_hostile_queries_do_not_end_the_resolver(sandbox: Sandbox, net: Internet) -> None:
    """Partial messages, endless names and replies as queries are dropped; then a proper query is processed."""
    found = await inside(
        await sandbox(),
        """
import random
draw = random.Random(7)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
head = bytes.fromhex("123401000001000000000000")
loops = [head + b"\\xc0\\x0c\\0\\1\\0\\1", head + b"\\x3f" * 300, head + b"\\x01a" * 200 + b"\\0\\0\\1\\0\\1",
         head[:7], b"", head[:2] + b"\\x81\\x80" + head[4:] + b"\\0\\0\\1\\0\\1", head + b"\\xff\\xff", b"\\0" * 65000]
for message in loops + [draw.randbytes(draw.randrange(200)) for _ in range(500)]:
    server.sendto(message, ("127.0.0.1", 53))
tell(after=ask("public.test", 13))
""",
    )
    assert found["after"] == "welcome\n"


async def test_killed_forwarder_is_restarted(sandbox: Sandbox, eventually: Eventually) -> None:
    """The connections of a killed forwarder are lost; new ones succeed, and private addresses are always refused."""
    runtime = await sandbox()
    (forwarder,) = await eventually(lambda: _forwarders(runtime))
    await asyncio.to_thread(subprocess.run, ["kill", "-9", str(forwarder)], check=True)

    async def back() -> Any:
        found = await inside(runtime, f'tell(public=ask("{PUBLIC}", 13), private=ask("10.1.2.3", 13))')
        assert found["private"].startswith("refused")
        return found["public"] == "welcome\n"

    await eventually(back)
    assert _forwarders(runtime) != [forwarder]


def _forwarders(runtime: ProcessRuntime) -> list[int]:
    members = runtime.termination.members(runtime.layout.directory("sbx-one"))
    lines = {pid: _command_line(pid) for pid in members}
    programs = {pid: line for pid, line in lines.items() if b"python" in line[0]}
    found = {pid for pid, line in programs.items() if any(b"forwarder" in part for part in line)}
    return [pid for pid in found if _parent(pid) not in found]  # it prepares the sandbox's namespace in a fork


def _parent(pid: int) -> int | None:
    """The parent of a process; None if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _command_line(pid: int) -> list[bytes]:
    """The command line of a process; empty if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return [b""]
