"""What is Docker's own: how a container is shut in, its network, its last words, and how the worker is brought."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiodocker import Docker
from aiohttp import StreamReader

from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import Limits
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.docker.bringing import Bringing
from spawner.runtimes.docker.containers import Kind
from spawner.runtimes.docker.engine import Engine
from tests.engines.docker import IMAGE
from tests.integration.runtimes.conftest import WORK, Boxes, Open


@pytest.fixture
def open_provider(open_docker: Open) -> Open:
    """Docker alone."""
    return open_docker


NET = "sandherd-test-net"


@pytest.fixture
async def docker(docker_engine: Any) -> AsyncIterator[Docker]:
    """A client of the engine."""
    client = Docker(docker_engine.host)
    yield client
    await client.close()


@pytest.fixture
async def networked(docker_engine: Any) -> AsyncIterator[Boxes]:
    """Boxes in a network that has a name."""
    made = Boxes(Engine(Docker(docker_engine.host), Kind(IMAGE, network=NET)))
    try:
        yield made
    finally:
        await made.close()


async def test_a_container_is_shut_in(boxes: Any) -> None:
    """No privileges to be had, none of root's powers, nothing of the image to be written to, no network."""
    box = await boxes.make(limits=Limits(memory_mb=128, processes=64, cpu_seconds=77, open_files=333))
    said = await boxes.sh(box, "grep -E '^(NoNewPrivs|CapEff|CapBnd)' /proc/self/status; ulimit -t; ulimit -n; id -u")
    assert [line.split()[-1] for line in said.out.decode().splitlines()] == [
        "0" * 16,
        "0" * 16,
        "1",
        "77",
        "333",
        "1000",
    ]
    assert (await boxes.sh(box, "touch /usr/mine")).code != 0
    assert (await boxes.sh(box, "ls /sys/class/net")).out.split() == [b"lo"]
    assert (await boxes.sh(box, "cp /bin/true /tmp/run && /tmp/run && echo ran")).out == b"ran\n"
    forks = await boxes.sh(box, "for i in $(seq 100); do sleep 5 & done; echo all", seconds=20)
    assert b"all" not in forks.out


async def test_a_named_network_is_joined(networked: Boxes, docker: Docker) -> None:
    """Boxes of it see each other; without it they are refused, by its name."""
    with pytest.raises(ProviderError, match=NET) as caught:
        await networked.make()
    assert caught.value.fault is ProviderFault.REFUSED
    network = await docker.networks.create({"Name": NET, "Driver": "bridge"})
    try:
        one, other = await networked.make(), await networked.make()
        shown = await docker.containers.container(other.id).show()
        address = shown["NetworkSettings"]["Networks"][NET]["IPAddress"]
        serve = "import socket; socket.create_server(('', 4711)).accept()[0].sendall(b'heard')"
        serving = asyncio.create_task(networked.sh(other, f'python3 -c "{serve}"', seconds=20))
        ask = (
            "import socket, time\n"
            "while True:\n"
            f"  try: print(socket.create_connection(('{address}', 4711), 5).recv(9)); break\n"
            "  except ConnectionRefusedError: time.sleep(0.05)\n"
        )
        assert b"heard" in (await networked.sh(one, f'python3 -c "{ask}"', seconds=20)).out
        await serving
        for box in (one, other):
            await networked.provider.remove(box.name)
    finally:
        await network.delete()


async def test_a_box_that_fails_says_its_last_words(boxes: Any) -> None:
    """In one line and within bounds, for whoever reads why it came to nothing."""
    box = await boxes.make("echo one; printf 'two\\033[2J\\n' >&2; head -c 5000 /dev/zero | tr '\\0' x; exit 2")
    ended = await boxes.until(box, lambda found: found is not None and found.end is not None)
    assert ended.end.code == 2
    assert "\x1b" not in ended.end.reason
    assert len(ended.end.reason) <= 600
    quiet = await boxes.make("echo fine; exit 0")
    ended = await boxes.until(quiet, lambda found: found is not None and found.end is not None)
    assert ended.end.reason == ""


async def test_what_is_mounted_is_there_as_it_was_said(boxes: Any, docker: Docker, tmp_path: Any) -> None:
    """A folder to be read only; one that is not there is refused by its name, and nothing is left of the try."""
    (tmp_path / "note").write_text("from the host")
    tmp_path.chmod(0o755)
    box = await boxes.make(mounts=[Mount(source=str(tmp_path), target="/given")])
    assert (await boxes.sh(box, "cat /given/note")).out == b"from the host"
    assert (await boxes.sh(box, "touch /given/mine")).code != 0
    spec = boxes.spec(mounts=[Mount(source=str(tmp_path / "no"), target="/given")])
    with pytest.raises(ProviderError, match=str(tmp_path / "no")) as caught:
        await boxes.provider.create(spec)
    assert caught.value.fault is ProviderFault.REFUSED
    assert await boxes.provider.get(spec.name) is None


async def test_the_worker_is_brought_once(docker: Docker) -> None:
    """However many ask for it at once; the volume is the same, and it is filled."""
    bundled = bytes(20480)
    volumes = await asyncio.gather(*(Bringing(docker, bundled).volume_for(IMAGE) for _ in range(3)))
    try:
        assert len(set(volumes)) == 1
        assert (await docker.containers.container(str(volumes[0])).show())["State"]["ExitCode"] == 0
    finally:
        await forget(docker, str(volumes[0]))


async def test_what_was_begun_and_given_up_is_begun_anew(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a spawner that died in the middle: the next one does not wait for ever, and does not take it for done."""
    monkeypatch.setattr("spawner.runtimes.docker.bringing._ABANDONED", 0.3)
    bundled = bytes(10240)
    volume = str(await Bringing(docker, bundled).volume_for(IMAGE))
    try:
        porter = docker.containers.container(volume)
        config = (await porter.show())["Config"]
        await porter.delete(force=True)
        told = {"Image": IMAGE, "Entrypoint": config["Entrypoint"], "Labels": config["Labels"]}
        abandoned = await docker.containers.create(told, name=volume)
        assert await Bringing(docker, bundled).volume_for(IMAGE) == volume
        shown = await docker.containers.container(volume).show()
        assert (shown["Id"] != abandoned.id, shown["State"]["ExitCode"]) == (True, 0)
    finally:
        await forget(docker, volume)


async def forget(docker: Docker, volume: str) -> None:
    """Take what was brought away again."""
    await docker.containers.container(volume).delete(force=True)
    await (await docker.volumes.get(volume)).delete()


async def test_a_volume_without_its_container_is_found_and_used(boxes: Any, docker: Docker) -> None:
    """A box that is made anew has what the first one had; removed, nothing of both is left."""
    spec = boxes.spec(f"echo life >> {WORK}/lives; sleep 60")
    box = await boxes.provider.create(spec)
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await docker.containers.container(box.id).delete(force=True, v=True)
    found = await boxes.provider.get(spec.name)
    assert (found.hollow, found.alive, found.labels) == (True, False, box.labels)
    assert [one.name for one in await boxes.provider.find({HERD: boxes.herd})] == [spec.name]
    box = await boxes.provider.create(spec)
    said = await boxes.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 2 ]; do sleep 0.05; done; cat {WORK}/lives")
    assert said.out == b"life\nlife\n"
    await docker.containers.container(box.id).delete(force=True, v=True)
    await boxes.provider.remove(spec.name)
    assert await boxes.provider.get(spec.name) is None
    assert await boxes.provider.find({HERD: boxes.herd}) == []


async def test_no_engine_is_said_with_what_helps(tmp_path: Any) -> None:
    """And may be tried again."""
    nobody = Engine(Docker(f"unix://{tmp_path}/none"), Kind(IMAGE))
    with pytest.raises(ProviderError, match="DOCKER_HOST") as caught:
        await nobody.get("sbx-1")
    assert caught.value.fault is ProviderFault.TRANSIENT
    await nobody.close()


async def test_a_file_that_is_too_large_is_not_fetched(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large its agent makes it, no more of it is heard than is asked for; the next file is read at once."""
    heard = 0
    hear = StreamReader.readany

    async def counted(stream: StreamReader) -> bytes:
        nonlocal heard
        part = await hear(stream)
        heard += len(part)
        return part

    monkeypatch.setattr(StreamReader, "readany", counted)
    box = await boxes.make()
    await boxes.sh(box, "truncate -s 300M huge; mkdir folder; ln huge folder/huge; echo small > small")
    for path in ("huge", "folder"):
        with pytest.raises(ProviderError) as caught:
            await boxes.provider.read(box.name, f"{WORK}/{path}", 1000)
        assert caught.value.fault is ProviderFault.REFUSED
    assert await boxes.provider.read(box.name, f"{WORK}/small", 1000) == b"small\n"
    assert heard < 2_000_000
