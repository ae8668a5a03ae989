"""Images with the worker are built on a real engine by Docker's own command."""

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiodocker import DockerError

from sandherd.admin.images.agent_sdks import SDKS
from sandherd.contracts.commands import RetryPolicy
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.harnesses import AcpHarness
from sandherd.contracts.specs import TaskSpec
from spawner.runtimes.commands import Command
from spawner.runtimes.docker.containers import ContainerOptions
from spawner.runtimes.docker.provider import DockerProvider as Provider
from tests.e2e.docker.conftest import HOLD
from tests.engines.docker import IMAGE
from tests.engines.packages import unpacked
from tests.engines.registry import Registry
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
LARGEST = 60_000_000
SCRIPTED_ACP = Path(__file__).parents[2] / "drivers" / "acp" / "scripted_agent.py"
BUSYBOX = "/usr/bin/busybox"


async def build(dockered: Any, *words: str) -> tuple[int, str, str]:
    """Run `sandherd image build` with Debian's docker, which has no buildx."""
    search = f"{dockered.engine.command.parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *(str(preloaded_sandherd()), "image", "build", *words, "-o", "json"),
        env={**os.environ, "PATH": search, "DOCKER_HOST": dockered.engine.host},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_task_runs_in_a_built_image(dockered: Any) -> None:
    """The image has one small additional layer with the label, and no worker is uploaded to its sandboxes."""
    status, out, err = await build(dockered, "--base", IMAGE, "--tag", "sandherd-test-agents:1")
    assert status == 0, err
    built = json.loads(out)
    assert 1_000_000 < built["layer_bytes"] < LARGEST, built
    assert "Step" in err
    shown = await dockered.docker.images.inspect("sandherd-test-agents:1")
    base = await dockered.docker.images.inspect(IMAGE)
    assert shown["Config"]["Labels"] == {"dev.sandherd.worker": built["worker"]}
    assert shown["Config"]["User"] == base["Config"]["User"]
    assert len(shown["RootFS"]["Layers"]) == len(base["RootFS"]["Layers"]) + 1
    task = await dockered.submit(f"{HOLD}; echo done > result", image="sandherd-test-agents:1")
    sandbox = await dockered.began(task)
    container = await dockered.docker.containers.container(f"sandherd-{sandbox}").show()
    assert [mount["Destination"] for mount in container["Mounts"]] == ["/sandherd"]
    await dockered.let_go(sandbox)
    view = await dockered.ended(task)
    assert view.state == "completed", view.error
    assert (await dockered.event(task, "agent.file_edited"))["data"]["change_type"] == "created"
    await dockered.whole(sandbox)


async def test_task_runs_in_an_image_without_the_workers_source(dockered: Any) -> None:
    """With `--target binary` the layer is smaller, and the worker runs from its bytecode."""
    sizes = {}
    for target in ("source", "binary"):
        tag = f"sandherd-test-{target}:1"
        status, out, err = await build(dockered, "--base", IMAGE, "--tag", tag, "--target", target)
        assert status == 0, err
        sizes[target] = json.loads(out)["layer_bytes"]
    assert sizes["binary"] < 0.9 * sizes["source"], sizes
    task = await dockered.submit(f"{HOLD}; echo done > result", image="sandherd-test-binary:1")
    sandbox = await dockered.began(task)
    assert not (await dockered.sh(sandbox, "find /opt/sandherd/lib -name '*.py'")).strip()
    await dockered.let_go(sandbox)
    view = await dockered.ended(task)
    assert view.state == "completed", view.error
    await dockered.whole(sandbox)


async def test_agent_runs_with_the_sdk_of_its_image(dockered: Any) -> None:
    """`--with acp` adds the SDK, built without a network; without it the task fails at start, with the remedy."""
    tag, python = "sandherd-test-agents:10", f"{SDKS}/acp/bin/python"
    status, _, err = await build(dockered, "--base", IMAGE, "--tag", tag, "--with", "acp")
    assert status == 0, err
    harness = AcpHarness(kind="acp", argv=[python, "agent.py"])
    spec = TaskSpec(text="say hello", harness=harness, files={"agent.py": SCRIPTED_ACP.read_text()})
    once = RetryPolicy(max_attempts=1)
    good, bare = (spec.model_copy(update={"image": image, "retry": once}) for image in (tag, IMAGE))
    view = await dockered.ended(task := await dockered.herd.submit(good))
    assert view.state == "completed", view.error
    assert (await dockered.event(task, "agent.message"))["data"]["content"] == "hello"
    await dockered.whole(view.sandbox)
    view = await dockered.ended(await dockered.herd.submit(bare))
    assert view.state == "failed"
    assert "sandherd image build --with acp" in view.error
    await dockered.whole(view.sandbox)


async def test_pushed_image_is_pulled_and_used(dockered: Any) -> None:
    """After its removal it is pulled from a real registry, and a task runs in it."""
    with Registry() as registry:
        tag = f"{registry.host}/team/agents:7"
        status, out, err = await build(dockered, "--base", IMAGE, "--tag", tag, "--push")
        assert status == 0, err
        assert json.loads(out)["pushed"] is True
        built = await dockered.docker.images.inspect(tag)
        await dockered.docker.images.delete(tag, force=True)
        with pytest.raises(DockerError):
            await dockered.docker.images.inspect(tag)
        await dockered.docker.images.pull(tag)
        pulled = await dockered.docker.images.inspect(tag)
        assert (pulled["Id"], pulled["RootFS"]) == (built["Id"], built["RootFS"])
        view = await dockered.ended(await dockered.submit("echo from afar", image=tag))
        assert view.state == "completed", view.error
        await dockered.whole(view.sandbox)
        # The image from which a sandbox's was made can still be removed by its name.
        await dockered.docker.images.delete(tag)


async def test_unreachable_registry_is_reported(dockered: Any) -> None:
    """The image is built nevertheless, and the command states that it was not pushed."""
    with Registry() as registry:
        host = registry.host
    tag = f"{host}/team/agents:8"
    status, out, err = await build(dockered, "--base", IMAGE, "--tag", tag, "--push")
    assert (status, out) == (1, "")
    assert "can't be pushed" in err
    await dockered.docker.images.delete(tag)


async def test_busybox_image_is_built_on_and_used(dockered: Any) -> None:
    """As with Alpine's images, the shell scripts in an image or container need only busybox's programs."""
    await with_busybox(dockered, "sandherd-test-busybox:1")
    tag = "sandherd-test-agents:9"
    status, _, err = await build(dockered, "--base", "sandherd-test-busybox:1", "--tag", tag)
    assert status == 0, err
    task = await dockered.submit(f"{HOLD}; echo done > result", image=tag, files={"given": "one\n"})
    sandbox = await dockered.began(task)
    found = await dockered.sh(sandbox, "for one in sh tar head timeout; do readlink -f $(which $one); done")
    assert found.split() == [BUSYBOX] * 4
    engine = Provider(dockered.docker, ContainerOptions(tag))
    ran = await engine.run(sandbox, Command(argv=["sh", "-c", "cat given; exit 3"]))
    assert (ran.code, ran.out) == (3, b"one\n")
    assert (await engine.run(sandbox, Command(argv=["sleep", "4711"], seconds=0.5))).timed_out
    await dockered.let_go(sandbox)
    view = await dockered.ended(task)
    assert view.state == "completed", view.error
    await dockered.whole(sandbox)
    edited = [event["data"]["file_path"] for event in await dockered.events(task, "agent.file_edited")]
    assert "result" in edited
    brought = await dockered.ended(await dockered.submit("true", image="sandherd-test-busybox:1"))
    assert brought.state == "completed", brought.error
    await dockered.whole(brought.sandbox)


async def test_base_without_python_is_refused_with_the_remedy(dockered: Any) -> None:
    """Both the command and the runtime refuse it, and leave nothing behind; the runtime's error names the command."""
    await without_python(dockered, "sandherd-test-bare:1")
    status, out, err = await build(dockered, "--base", "sandherd-test-bare:1", "--tag", "sandherd-test-agents:2")
    assert (status, out) == (1, "")
    assert "has no Python" in err
    assert "--with-python" in err
    task = await dockered.submit("true", image="sandherd-test-bare:1")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.RUNTIME_REFUSED)
    assert "sandherd image build" in view.error
    await dockered.whole()


async def test_failed_build_states_why(dockered: Any) -> None:
    """The error names a base that does not exist."""
    status, _, err = await build(dockered, "--base", "sandherd-no-such:1", "--tag", "sandherd-test-agents:3")
    assert status == 1
    assert "sandherd-no-such:1" in err


async def without_python(dockered: Any, tag: str) -> None:
    """The base image without its Python."""
    await changed(dockered, tag, "rm -f /usr/bin/python3*")


async def with_busybox(dockered: Any, tag: str) -> None:
    """The base image with busybox in place of each program that it has, including the shell."""
    replaced = f"for one in $({BUSYBOX} --list | grep -v busybox); do found=$(command -v $one) && "
    replaced += f'case $found in /*) {BUSYBOX} ln -sf {BUSYBOX} "$found";; esac; done; {BUSYBOX} true'
    await changed(dockered, tag, replaced, {BUSYBOX: unpacked("busybox-static") / "bin" / "busybox"})


async def changed(dockered: Any, tag: str, script: str, files: Mapping[str, Path] | None = None) -> None:
    """The base image after a script has run in it, with these programs."""
    options = {"Image": IMAGE, "Cmd": ["/bin/sh", "-c", script], "HostConfig": {"NetworkMode": "none"}}
    container = await dockered.docker.containers.create(options)
    try:
        for path, file in (files or {}).items():
            await container.put_archive("/", io.BytesIO(packed(path, file.read_bytes())))
        await container.start()
        assert (await container.wait(timeout=PATIENCE))["StatusCode"] == 0
        name, _, version = tag.partition(":")
        await container.commit(repository=name, tag=version)
    finally:
        await container.delete(force=True)


def packed(path: str, content: bytes) -> bytes:
    """An archive of one program."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))
    return made.getvalue()
