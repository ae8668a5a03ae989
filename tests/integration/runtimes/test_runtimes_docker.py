"""Properties of Docker alone: confinement, network, last output, and the upload of the worker."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiodocker import Docker, DockerError
from aiodocker.volumes import DockerVolume
from aiohttp import StreamReader

from sandherd.contracts.repositories import MOUNTED
from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.boxes.box_files import HERD, STATE
from spawner.runtimes.boxes.provider import File, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime, observed_box
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.docker.containers import ContainerOptions, config
from spawner.runtimes.docker.image_preparation import ImagePreparation
from spawner.runtimes.docker.provider import DockerProvider
from spawner.runtimes.docker.shared_folders import is_shared
from tests.engines.docker import IMAGE
from tests.integration.runtimes.conftest import WAITS, WORK, Boxes, Open
from tests.patience import PATIENCE


@pytest.fixture
def open_provider(open_docker: Open) -> Open:
    """A function that opens the Docker provider."""
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
    """Boxes in a named network."""
    made = Boxes(DockerProvider(Docker(docker_engine.host), ContainerOptions(IMAGE, network=NET)))
    try:
        yield made
    finally:
        await made.close()


async def test_container_is_confined(boxes: Any) -> None:
    """A container has no privileges, no capabilities, a read-only image and no network."""
    box = await boxes.make(limits=SandboxLimits(memory_mb=128, processes=64, cpu_seconds=77, open_files=333))
    result = await boxes.sh(box, "grep -E '^(NoNewPrivs|CapEff|CapBnd)' /proc/self/status; ulimit -t; ulimit -n; id -u")
    assert [line.split()[-1] for line in result.out.decode().splitlines()] == [
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


async def test_named_network_is_joined(networked: Boxes, docker: Docker) -> None:
    """Containers in a named network reach each other; the error for a missing network has its name."""
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


async def test_failed_sandbox_reports_its_last_output(boxes: Any) -> None:
    """The last output is in one line of limited length."""
    box = await boxes.make("echo one; printf 'two\\033[2J\\n' >&2; head -c 5000 /dev/zero | tr '\\0' x; exit 2")
    ended = await boxes.until(box, lambda found: found is not None and found.end is not None)
    assert ended.end.code == 2
    assert "\x1b" not in ended.end.reason
    assert len(ended.end.reason) <= 600
    quiet = await boxes.make("echo fine; exit 0")
    ended = await boxes.until(quiet, lambda found: found is not None and found.end is not None)
    assert ended.end.reason == ""


async def test_command_in_an_ended_sandbox_states_how_it_ended(boxes: Any, docker_engine: Any) -> None:
    """The error has the exit status and the worker's last line."""
    box = await boxes.make("echo the disk broke >&2; exit 7")
    await boxes.until(box, lambda found: found is not None and found.end is not None)
    runtime = BoxRuntime(DockerProvider(Docker(docker_engine.host), ContainerOptions(IMAGE, network="none")), "herd")
    try:
        with pytest.raises(RuntimeFailedError, match=f"{box.name} has ended .exit status 7, the disk broke"):
            await runtime.run(box.name, Command(argv=["true"]))
    finally:
        await runtime.close()


async def test_mount_is_present_as_declared(boxes: Any, docker: Docker, tmp_path: Any) -> None:
    """A mounted folder is read-only; a missing one is refused by name, and nothing is left of the attempt."""
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


async def test_worker_is_uploaded_once(docker: Docker) -> None:
    """Concurrent requests make one image with one layer on the requested one; nothing else is left."""
    bundled = bytes(20480)
    images = await asyncio.gather(*(ImagePreparation(docker, USER, bundled).image_for(IMAGE) for _ in range(3)))
    try:
        assert len(set(images)) == 1
        made, base = await docker.images.inspect(images[0]), await docker.images.inspect(IMAGE)
        assert made["RootFS"]["Layers"][:-1] == base["RootFS"]["Layers"]
        assert made["Config"]["Env"] == base["Config"]["Env"]
        await none_at_it(docker)
        another = await ImagePreparation(docker, (1001, 1001), bundled).image_for(IMAGE)
        assert another != images[0]
        await forget(docker, another)
    finally:
        await forget(docker, images[0])


async def test_image_is_prepared_for_the_platform_of_the_settings(docker: Docker) -> None:
    """The engine finds its own platform's image by name; an image that it lacks is refused with the remedy."""
    shown = await docker.images.inspect(IMAGE)
    own = f"{shown['Os']}/{shown['Architecture']}"
    other, bundled = "linux/s390x", bytes(30720)
    image = await ImagePreparation(docker, USER, bundled, own).image_for(IMAGE)
    try:
        made = await docker.images.inspect(image)
        assert f"{made['Os']}/{made['Architecture']}" == own
        with pytest.raises(ProviderError, match=f"no image {IMAGE} for {other}; pull it with `docker pull") as refused:
            await ImagePreparation(docker, USER, bundled, other).image_for(IMAGE)
        assert refused.value.fault is ProviderFault.REFUSED
    finally:
        await forget(docker, image)


async def test_abandoned_image_preparation_is_repeated(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preparation whose spawner died is neither waited for forever nor taken as done by the next spawner."""
    monkeypatch.setattr("spawner.runtimes.docker.image_preparation._ABANDONED", 0.3)
    bundled = bytes(10240)
    image = await ImagePreparation(docker, USER, bundled).image_for(IMAGE)
    await forget(docker, image)
    abandoned = await docker.containers.create({"Image": IMAGE, "Cmd": ["true"]}, name=image.replace(":", "-"))
    try:
        assert await ImagePreparation(docker, USER, bundled).image_for(IMAGE) == image
        with pytest.raises(DockerError):
            await abandoned.show()
        await none_at_it(docker)
    finally:
        await forget(docker, image)


async def test_vanished_prepared_image_is_a_temporary_error(boxes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that was pruned just before the container's creation is a temporary error."""

    async def gone(_self: ImagePreparation, _image: str) -> str:
        return "sandherd-ready:gone"

    with monkeypatch.context() as patched:
        patched.setattr(ImagePreparation, "image_for", gone)
        with pytest.raises(ProviderError, match="sandherd-ready:gone") as caught:
            await boxes.make()
    assert caught.value.fault is ProviderFault.TRANSIENT
    assert (await boxes.make()).alive


async def none_at_it(docker: Docker) -> None:
    """Check that no container is left in which an image was made."""
    assert await docker.containers.list(all="true", filters='{"name": ["^/sandherd-ready-"]}') == []


async def forget(docker: Docker, image: str) -> None:
    """Remove the added images."""
    await docker.images.delete(image, force=True)


SECRET = "a-secret-4711"


async def test_files_are_written_without_exposure(boxes: Any, docker: Docker) -> None:
    """The engine's inspection, its logs and the arguments of processes do not have the content of files."""
    box = await boxes.make(files=[File(f"{STATE}/joiner.creds", SECRET.encode())])
    result = await boxes.sh(box, f"cat {STATE}/joiner.creds; stat -c ' %a %u' {STATE}/joiner.creds; ps -eo args")
    assert result.out.decode().startswith(f"{SECRET} 600 1000\n")
    assert result.out.count(SECRET.encode()) == 1
    container = docker.containers.container(box.id)
    texts = json.dumps(await container.show()) + "".join(await container.log(stdout=True, stderr=True))
    assert SECRET not in texts


async def test_large_files_are_complete_before_the_program_starts(boxes: Any) -> None:
    """Files that exceed any buffer are complete before the program starts; its standard input is empty."""
    content = bytes(range(256)) * 40_000
    files = [File(f"{STATE}/large", content), File(f"{WORK}/deep/er/last", b"last")]
    box = await boxes.make(f"cat > {WORK}/input; sha256sum < {STATE}/large > {WORK}/sum; {WAITS}", files=files)
    result = await boxes.sh(box, f"until [ -s {WORK}/sum ]; do sleep 0.05; done; cat sum deep/er/last; wc -c < input")
    assert result.out.decode() == f"{hashlib.sha256(content).hexdigest()}  -\nlast0\n"


async def test_externally_restarted_container_waits_for_no_files(boxes: Any, docker: Docker) -> None:
    """A restarted container does not wait for its files, which it already has."""
    box = await boxes.make(f"echo life >> {WORK}/lives; {WAITS}")
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await docker.containers.container(box.id).restart(timeout=5)
    result = await boxes.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 2 ]; do sleep 0.05; done; cat {STATE}/task.json")
    assert json.loads(result.out) == {"text": "ü"}


async def test_created_but_unstarted_container_is_continued(boxes: Any, docker: Docker) -> None:
    """The next request starts a container whose creator died before it, even if its input is closed."""
    for handed in (None, b"", b"99999\ncut off"):
        spec = boxes.spec()
        image = await ImagePreparation(docker, USER).image_for(IMAGE)
        container = await docker.containers.create(
            config(spec, ContainerOptions(IMAGE), image), name=f"sandherd-{spec.name}"
        )
        if handed is not None:
            async with container.attach(stdin=True) as stream:
                await stream.write_in(handed)
        box = await boxes.provider.create(spec)
        assert (box.id, box.alive) == (container.id, True)
        result = await boxes.sh(box, f"cat {STATE}/task.json; echo on")
        assert result.out == spec.files[0].content + b"on\n"


@pytest.mark.parametrize("handed", [b"", b"99999\ncut off"])
async def test_container_without_its_files_has_not_started(boxes: Any, docker: Docker, handed: bytes) -> None:
    """A container whose spawner died during the upload ends like a worker without permission, and can be recovered."""
    spec = boxes.spec(f"echo life >> {WORK}/lives; {WAITS}")
    image = await ImagePreparation(docker, USER).image_for(IMAGE)
    container = await docker.containers.create(
        config(spec, ContainerOptions(IMAGE), image), name=f"sandherd-{spec.name}"
    )
    async with container.attach(stdin=True) as stream:
        await container.start()
        await stream.write_in(handed)
    ended = await boxes.until(await boxes.provider.get(spec.name), lambda box: box is not None and box.end is not None)
    end = observed_box(ended).end
    assert end is not None
    assert (end.code, end.not_started) == (7, True)
    assert "has not received its files" in ended.end.reason
    await boxes.provider.write_files(spec.name, spec.files)
    await boxes.provider.start(spec.name)
    result = await boxes.sh(ended, f"until [ -s {WORK}/lives ]; do sleep 0.05; done; cat {WORK}/lives")
    assert result.out == b"life\n"


async def test_volume_without_its_container_is_reused(boxes: Any, docker: Docker) -> None:
    """A sandbox that is created again has the first one's files; after its removal nothing of both is left."""
    spec = boxes.spec(f"echo life >> {WORK}/lives; {WAITS}")
    box = await boxes.provider.create(spec)
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await docker.containers.container(box.id).delete(force=True, v=True)
    found = await boxes.provider.get(spec.name)
    assert (found.hollow, found.alive, found.labels) == (True, False, box.labels)
    end = observed_box(found).end
    assert end is not None
    assert not end.files_deleted, "it would be given up, though its volume has what was not said yet"
    assert [one.name for one in await boxes.provider.find({HERD: boxes.herd})] == [spec.name]
    box = await boxes.provider.create(replace(spec, recovers=True))
    result = await boxes.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 2 ]; do sleep 0.05; done; cat {WORK}/lives")
    assert result.out == b"life\nlife\n"
    await docker.containers.container(box.id).delete(force=True, v=True)
    await boxes.provider.remove(spec.name)
    assert await boxes.provider.get(spec.name) is None
    assert await boxes.provider.find({HERD: boxes.herd}) == []


async def test_sandbox_without_its_volume_is_not_recreated_for_recovery(boxes: Any) -> None:
    """A new sandbox would run the agent a second time in the same attempt."""
    spec = replace(boxes.spec(WAITS), recovers=True)
    with pytest.raises(ProviderError, match="its volume no longer exists") as caught:
        await boxes.provider.create(spec)
    assert caught.value.fault is ProviderFault.NOT_FOUND
    assert await boxes.provider.find({HERD: boxes.herd}) == []


async def test_volume_removed_during_a_recovery_leaves_nothing(
    boxes: Any, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left if the removal comes after the spawner's check and before the engine's creation."""
    spec = boxes.spec(WAITS)
    box = await boxes.provider.create(spec)
    await boxes.sh(box, f"until [ -e {STATE}/task.json ]; do sleep 0.05; done")
    await docker.containers.container(box.id).delete(force=True, v=True)
    prepared = ImagePreparation.image_for

    async def image_for(preparation: ImagePreparation, image: str) -> str:
        await DockerVolume(docker, f"sandherd-{spec.name}").delete()
        return await prepared(preparation, image)

    monkeypatch.setattr(ImagePreparation, "image_for", image_for)
    with pytest.raises(ProviderError, match="its volume no longer exists") as caught:
        await boxes.provider.create(replace(spec, recovers=True))
    assert caught.value.fault is ProviderFault.NOT_FOUND
    assert await boxes.provider.get(spec.name) is None
    assert await boxes.provider.find({HERD: boxes.herd}) == []


async def test_unreachable_engine_is_reported_with_a_remedy(tmp_path: Any) -> None:
    """The error may be retried, and has a remedy."""
    no_one = DockerProvider(Docker(f"unix://{tmp_path}/none"), ContainerOptions(IMAGE))
    with pytest.raises(ProviderError, match="DOCKER_HOST") as caught:
        await no_one.get("sbx-1")
    assert caught.value.fault is ProviderFault.TRANSIENT
    await no_one.close()


async def test_oversized_file_is_not_fetched(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the limit is received, however large the file is; the next file is read at once."""
    received = 0
    original_readany = StreamReader.readany

    async def counted(stream: StreamReader) -> bytes:
        nonlocal received
        part = await original_readany(stream)
        received += len(part)
        return part

    monkeypatch.setattr(StreamReader, "readany", counted)
    box = await boxes.make()
    await boxes.sh(box, "truncate -s 300M huge; mkdir folder; ln huge folder/huge; echo small > small")
    for path in ("huge", "folder"):
        with pytest.raises(ProviderError) as caught:
            await boxes.provider.read(box.name, f"{WORK}/{path}", 1000)
        assert caught.value.fault is ProviderFault.REFUSED
    assert await boxes.provider.read(box.name, f"{WORK}/small", 1000) == b"small\n"
    assert received < 2_000_000


async def test_folder_that_containers_see_is_found_out(docker: Docker, tmp_path: Any) -> None:
    """The check fails if the engine has another folder at the path, or no image to check with; it leaves nothing."""
    options = ContainerOptions(IMAGE)
    assert await is_shared(docker, options, tmp_path / "new")
    assert not await is_shared(docker, ContainerOptions("no-such-image"), tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:  # the engine's process has another folder at this path, or none
        assert not await is_shared(docker, options, Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)
    tmp_path.chmod(0o700)
    assert await is_shared(docker, options, tmp_path)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "new"]
    assert await docker.containers.list(all="true", filters='{"name": ["^/sandherd-probe-"]}') == []


async def test_mirror_is_mounted_read_only(boxes: Any, tmp_path: Any) -> None:
    """The mirror is mounted where the worker expects it, beside the box's own files."""
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    tmp_path.chmod(0o755)
    box = await boxes.make(repository=tmp_path)
    assert (await boxes.sh(box, f"cat {MOUNTED}/HEAD; cat {STATE}/task.json")).out.startswith(b"ref: refs/heads/main")
    assert (await boxes.sh(box, f"touch {MOUNTED}/mine")).code != 0
