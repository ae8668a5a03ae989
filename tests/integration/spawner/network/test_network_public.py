"""Destinations that a sandbox can reach: the internet, by name and by address."""

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from spawner.runtimes.commands import Command
from tests.integration.spawner.network.conftest import Sandbox, inside
from tests.integration.spawner.network.internet import OTHER, PUBLIC, PUBLIC6, Internet
from tests.integration.spawner.network.world import BLOCK

pytestmark = pytest.mark.timeout(900)


async def test_internet_is_reachable_by_name_and_address(sandbox: Sandbox) -> None:
    """A sandbox reaches the internet over IPv4 and IPv6, also if the server sends first; the host resolves names."""
    found = await inside(
        await sandbox(),
        f"""
import urllib.request
get = lambda url: urllib.request.urlopen(url, timeout=20).read().decode()
tell(name=get("http://public.test/"), address=get("http://{PUBLIC}/"), six=get("http://[{PUBLIC6}]/"),
     greeted=ask("public.test", 13), mapped=ask("::ffff:{PUBLIC}", 13), none=ask("nobody.test", 80),
     addresses=sorted({{one[4][0] for one in socket.getaddrinfo("public.test", 80)}}))
""",
    )
    assert (found["name"], found["address"], found["six"]) == ("public",) * 3
    assert (found["greeted"], found["mapped"]) == ("welcome\n", "welcome\n")
    assert "Name or service not known" in found["none"]
    assert found["addresses"] == [PUBLIC, PUBLIC6]


async def test_large_transfer_arrives_with_a_half_closed_connection(sandbox: Sandbox) -> None:
    """A sandbox transfers 128 MiB each way; the server responds to an upload only once its half is closed."""
    found = await inside(
        await sandbox(),
        f"""
import hashlib
block, digest = bytes(range(256)) * 256, hashlib.sha256()
with socket.create_connection(("{PUBLIC}", 19), 60) as one:
    one.sendall(b"2048\\n"); size = 0
    while data := one.recv(1 << 20): digest.update(data); size += len(data)
with socket.create_connection(("{PUBLIC}", 9), 60) as one:
    for _ in range(2048): one.sendall(block)
    one.shutdown(socket.SHUT_WR)
    back = b""
    while data := one.recv(100): back += data
tell(size=size, down=digest.hexdigest(), up=back.decode())
""",
    )
    whole = hashlib.sha256(BLOCK * 2048).hexdigest()
    assert found == {"size": len(BLOCK) * 2048, "down": whole, "up": whole}


async def test_two_hundred_connections_are_separate(sandbox: Sandbox) -> None:
    """Two hundred connections that are open and idle together each receive their own bytes."""
    found = await inside(
        await sandbox(),
        f"""
all = [socket.create_connection(("{PUBLIC}", 7), 60) for _ in range(200)]
time.sleep(2)
for number, one in enumerate(all): one.sendall(str(number).encode())
tell(right=sum(one.recv(100).decode() == str(number) for number, one in enumerate(all)))
""",
    )
    assert found == {"right": 200}


async def test_git_clones_over_http(sandbox: Sandbox, net: Internet, tmp_path: Path) -> None:
    """The host's own git clones a repository from the internet."""
    source, own = tmp_path / "source", ["-c", "user.name=a", "-c", "user.email=a@b"]
    steps = (
        ["git", "init", "-q", str(source)],
        ["git", "-C", str(source), *own, "commit", "-q", "--allow-empty", "-m", "one"],
        ["git", "clone", "-q", "--bare", str(source), str(net.folder / "one.git")],
        ["git", "-C", str(net.folder / "one.git"), "update-server-info"],
    )  # fmt: skip
    for step in steps:
        await asyncio.to_thread(subprocess.run, step, check=True)
    runtime = await sandbox()
    command = "git clone -q http://public.test/one.git cloned && git -C cloned log --format=%s"
    ran = await runtime.run("sbx-one", Command(argv=["/bin/sh", "-c", command], seconds=60))
    assert (ran.code, ran.out) == (0, b"one\n"), ran


async def test_only_declared_endpoints_are_reached(sandbox: Sandbox) -> None:
    """A sandbox reaches exactly the declared ports: of a private address, a private name, and the host's loopback."""
    runtime = await sandbox(endpoints=frozenset({"10.1.2.3:13", "db.corp.test:7", "127.0.0.1:4711", "[fd12::1]:13"}))
    server = await asyncio.to_thread(_greeting_server)
    try:
        found = await inside(
            runtime,
            """
tell(declared=[ask("10.1.2.3", 13), ask("db.corp.test", 7), ask("127.0.0.1", 4711), ask("localhost", 4711),
               ask("fd12::1", 13)],
     beside=[ask("10.1.2.3", 9), ask("10.1.2.3", 80), ask("127.0.0.1", 4712), ask("192.168.7.7", 13),
             ask("fd12::1", 7)])
""",
        )
    finally:
        server.kill()
        server.communicate()
    assert found["declared"] == ["welcome\n", "?\n", "welcome\n", "welcome\n", "welcome\n"]
    assert all(one.startswith("refused") for one in found["beside"]), found


def _greeting_server() -> "subprocess.Popen[str]":
    code = (
        "import socket,sys\ns=socket.create_server(('127.0.0.1',4711)); print('up',flush=True)\n"
        "while True:\n c,_=s.accept(); c.sendall(b'welcome\\n'); c.recv(9); c.close()"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    server.stdout.readline()
    return server


async def test_allow_list_is_exclusive(sandbox: Sandbox, net: Internet) -> None:
    """Allowed names are pinned to the resolver's addresses and their ports; other names are not even resolved."""
    runtime = await sandbox(mode="allow", allow=frozenset({"public.test:80", "rebound.test"}))
    found = await inside(
        runtime,
        f"""
before = ask("{PUBLIC}", 80, b"GET / HTTP/1.0\\r\\n\\r\\n")
tell(before=before, named=ask("public.test", 80, b"GET / HTTP/1.0\\r\\n\\r\\n"),
     pinned=ask("{PUBLIC}", 80, b"GET / HTTP/1.0\\r\\n\\r\\n"), port=ask("public.test", 13),
     other=ask("other.test", 80), address=ask("{OTHER}", 80), ours=ask("exfiltrated-data.test", 80),
     tcp=ask("198.51.100.10", 53))
""",
    )
    assert all(found[name].startswith("HTTP/1.1 200") for name in ("named", "pinned")), found
    refused = [name for name, reply in found.items() if reply.startswith("refused")]
    assert refused == ["before", "port", "other", "address", "ours", "tcp"]
    requested = set(net.requested.read_text().split())
    assert requested == {"public.test"}


async def test_without_a_network_only_declared_endpoints_are_reached(sandbox: Sandbox, net: Internet) -> None:
    """Without a network no address, no name and no query to the host's resolver succeeds, except declared endpoints."""
    found = await inside(
        await sandbox(mode="none", endpoints=frozenset({"10.1.2.3:13"})),
        f"""
tell(declared=ask("10.1.2.3", 13), rest=[ask("{PUBLIC}", 80), ask("public.test", 80), ask("{PUBLIC6}", 80)])
""",
    )
    assert found["declared"] == "welcome\n"
    assert all(one.startswith("refused") for one in found["rest"]), found
    assert not net.requested.exists()
