"""What is Docker's own: how a container is shut in, its network, its last words, and how the worker is brought."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiodocker import Docker, DockerError
from aiohttp import StreamReader

from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import Limits
from spawner.runtimes.boxes.furnishing import HERD, STATE
from spawner.runtimes.boxes.provider import File, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import seen
from spawner.runtimes.docker.bringing import Bringing
from spawner.runtimes.docker.containers import Kind, config
from spawner.runtimes.docker.engine import Engine
from tests.engines.docker import IMAGE
from tests.integration.runtimes.conftest import WAITS, WORK, Boxes, Open
from tests.patience import PATIENCE


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
        serving = asyncio.create_task(networked.sh(other, f'python3 -c "{serve}"', seconds=PATIENCE))
        ask = (
            "import socket, time\n"
            "while True:\n"
            f"  try: print(socket.create_connection(('{address}', 4711), 5).recv(9)); break\n"
            "  except ConnectionRefusedError: time.sleep(0.05)\n"
        )
        assert b"heard" in (await networked.sh(one, f'python3 -c "{ask}"', seconds=PATIENCE)).out
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


USER = (1000, 1000)


async def test_the_worker_is_brought_once(docker: Docker) -> None:
    """However many ask for it at once: one image, one layer on the one asked for; nothing else is left of it."""
    bundled = bytes(20480)
    images = await asyncio.gather(*(Bringing(docker, USER, bundled).image_for(IMAGE) for _ in range(3)))
    try:
        assert len(set(images)) == 1
        made, base = await docker.images.inspect(images[0]), await docker.images.inspect(IMAGE)
        assert made["RootFS"]["Layers"][:-1] == base["RootFS"]["Layers"]
        assert made["Config"]["Env"] == base["Config"]["Env"]
        await none_at_it(docker)
        another = await Bringing(docker, (1001, 1001), bundled).image_for(IMAGE)
        assert another != images[0]
        await forget(docker, another)
    finally:
        await forget(docker, images[0])


async def test_what_was_begun_and_given_up_is_begun_anew(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a spawner that died in the middle: the next one does not wait for ever, and does not take it for done."""
    monkeypatch.setattr("spawner.runtimes.docker.bringing._ABANDONED", 0.3)
    bundled = bytes(10240)
    image = await Bringing(docker, USER, bundled).image_for(IMAGE)
    await forget(docker, image)
    abandoned = await docker.containers.create({"Image": IMAGE, "Cmd": ["true"]}, name=image.replace(":", "-"))
    try:
        assert await Bringing(docker, USER, bundled).image_for(IMAGE) == image
        with pytest.raises(DockerError):
            await abandoned.show()
        await none_at_it(docker)
    finally:
        await forget(docker, image)


async def test_what_is_gone_again_is_no_image_that_is_not_there(boxes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody prunes what was made of an image, just before a container is: that passes, and is said so."""

    async def gone(_self: Bringing, _image: str) -> str:
        return "sandherd-ready:gone"

    with monkeypatch.context() as patched:
        patched.setattr(Bringing, "image_for", gone)
        with pytest.raises(ProviderError, match="sandherd-ready:gone") as caught:
            await boxes.make()
    assert caught.value.fault is ProviderFault.TRANSIENT
    assert (await boxes.make()).alive


async def none_at_it(docker: Docker) -> None:
    """No container is left that an image was made in."""
    assert await docker.containers.list(all="true", filters='{"name": ["^/sandherd-ready-"]}') == []


async def forget(docker: Docker, image: str) -> None:
    """Take what was brought away again."""
    await docker.images.delete(image, force=True)


SECRET = "a-secret-4711"


async def test_files_go_in_by_no_way_that_tells_them(boxes: Any, docker: Docker) -> None:
    """Neither what the engine shows of a container nor its logs have them, nor any process of it in its arguments."""
    box = await boxes.make(files=[File(f"{STATE}/joiner.creds", SECRET.encode())])
    said = await boxes.sh(box, f"cat {STATE}/joiner.creds; stat -c ' %a %u' {STATE}/joiner.creds; ps -eo args")
    assert said.out.decode().startswith(f"{SECRET} 600 1000\n")
    assert said.out.count(SECRET.encode()) == 1
    container = docker.containers.container(box.id)
    told = json.dumps(await container.show()) + "".join(await container.log(stdout=True, stderr=True))
    assert SECRET not in told


async def test_large_files_go_in_whole_before_the_program_begins(boxes: Any) -> None:
    """More than any buffer on the way holds; the program finds its input empty."""
    content = bytes(range(256)) * 40_000
    files = [File(f"{STATE}/large", content), File(f"{WORK}/deep/er/last", b"last")]
    box = await boxes.make(f"cat > {WORK}/input; sha256sum < {STATE}/large > {WORK}/sum; {WAITS}", files=files)
    said = await boxes.sh(box, f"until [ -s {WORK}/sum ]; do sleep 0.05; done; cat sum deep/er/last; wc -c < input")
    assert said.out.decode() == f"{hashlib.sha256(content).hexdigest()}  -\nlast0\n"


async def test_a_container_that_a_stranger_starts_again_waits_for_nothing(boxes: Any, docker: Docker) -> None:
    """It has its files already."""
    box = await boxes.make(f"echo life >> {WORK}/lives; {WAITS}")
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await docker.containers.container(box.id).restart(timeout=5)
    said = await boxes.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 2 ]; do sleep 0.05; done; cat {STATE}/task.json")
    assert json.loads(said.out) == {"text": "ü"}


async def test_a_container_that_was_made_and_not_started_is_gone_on_with(boxes: Any, docker: Docker) -> None:
    """By whoever asks next, also where its input is closed already: the spawner that made it died at that moment."""
    for handed in (None, b"", b"99999\ncut off"):
        spec = boxes.spec()
        image = await Bringing(docker, USER).image_for(IMAGE)
        container = await docker.containers.create(config(spec, Kind(IMAGE), image), name=f"sandherd-{spec.name}")
        if handed is not None:
            async with container.attach(stdin=True) as stream:
                await stream.write_in(handed)
        box = await boxes.provider.create(spec)
        assert (box.id, box.alive) == (container.id, True)
        said = await boxes.sh(box, f"cat {STATE}/task.json; echo on")
        assert said.out == spec.files[0].content + b"on\n"


@pytest.mark.parametrize("handed", [b"", b"99999\ncut off"])
async def test_a_container_whose_files_never_came_has_not_begun(boxes: Any, docker: Docker, handed: bytes) -> None:
    """The spawner died while it handed them over: it ends as one whose worker had no leave, and can be recovered."""
    spec = boxes.spec(f"echo life >> {WORK}/lives; {WAITS}")
    image = await Bringing(docker, USER).image_for(IMAGE)
    container = await docker.containers.create(config(spec, Kind(IMAGE), image), name=f"sandherd-{spec.name}")
    async with container.attach(stdin=True) as stream:
        await container.start()
        await stream.write_in(handed)
    ended = await boxes.until(await boxes.provider.get(spec.name), lambda box: box is not None and box.end is not None)
    end = seen(ended).end
    assert end is not None
    assert (end.code, end.not_started) == (7, True)
    assert "have not come" in ended.end.reason
    await boxes.provider.put(spec.name, spec.files)
    await boxes.provider.start(spec.name)
    said = await boxes.sh(ended, f"until [ -s {WORK}/lives ]; do sleep 0.05; done; cat {WORK}/lives")
    assert said.out == b"life\n"


async def test_a_volume_without_its_container_is_found_and_used(boxes: Any, docker: Docker) -> None:
    """A box that is made anew has what the first one had; removed, nothing of both is left."""
    spec = boxes.spec(f"echo life >> {WORK}/lives; {WAITS}")
    box = await boxes.provider.create(spec)
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await docker.containers.container(box.id).delete(force=True, v=True)
    found = await boxes.provider.get(spec.name)
    assert (found.hollow, found.alive, found.labels) == (True, False, box.labels)
    end = seen(found).end
    assert end is not None
    assert not end.gone, "it would be given up, though its volume has what was not said yet"
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
