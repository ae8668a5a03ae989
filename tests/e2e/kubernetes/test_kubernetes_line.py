"""Tasks in pods with the real stack, from submission to removal, without a token left anywhere."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import SANDBOX_ENDED
from spawner.runtimes.boxes.box_files import ROOT
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.live_files import contents_below
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd
from tests.stored_history import all_stored

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
HOLD: Final = "touch began; until test -e go; do sleep 0.05; done"
SETTINGS: Final = """
runtime: kubernetes
sandbox_image: {image}
kubernetes_config: {config}
kubernetes_storage_gb: 1
check_interval: 0.5
stop_grace: 5
"""
T = TypeVar("T")


class Line:
    """A herd on a cluster."""

    def __init__(self, home: Path, herd: Herd, cluster: Cluster) -> None:
        self.home, self.herd, self.cluster = home, herd, cluster

    async def submit(self, script: str, **spec: Any) -> str:
        spec = {"retry": RetryPolicy(max_attempts=1), **spec}
        files_with = TaskSpec(text="do it", harness=CommandHarness(argv=["/bin/sh", "-c", script]), **spec)
        return await self.herd.submit(files_with)

    async def events(self, task: str, *types: str) -> list[dict[str, Any]]:
        await all_stored(self.herd)
        return await self.stored(task, *types)

    async def stored(self, task: str, *types: str) -> list[dict[str, Any]]:
        stored = [event.envelope async for event in self.herd.events(task=task)]
        return [event for event in stored if not types or event["type"] in types]

    async def event(self, task: str, type: str) -> dict[str, Any]:
        async def stored() -> dict[str, Any] | None:
            return next(iter(await self.stored(task, type)), None)

        return await eventually(stored)

    async def ended(self, task: str) -> TaskView:
        async def look() -> TaskView | None:
            view = await self.herd.task(task)
            return view if view.ended_at else None

        return await eventually(look)

    async def began(self, task: str) -> str:
        """Wait until the agent of a waiting task has begun; returns its sandbox."""

        async def look() -> str | None:
            sandbox = (await self.herd.task(task)).sandbox
            if sandbox is None:
                return None
            pods = [
                one["metadata"] for one in self.cluster.objects("pods") if one["metadata"]["name"].endswith(sandbox)
            ]
            folders = [self.cluster.folder / "pods" / pod["uid"] for pod in pods]
            return sandbox if any((folder / f"{ROOT[1:]}/work/began").exists() for folder in folders) else None

        return await eventually(look)

    def pod(self, sandbox: str) -> dict[str, Any]:
        (found,) = [one for one in self.cluster.objects("pods") if one["metadata"]["name"].endswith(sandbox)]
        return found

    async def whole(self, *sandboxes: str) -> None:
        """Check that each has ended, with all events stored without a gap, and that no pod is left."""

        async def settled(sandbox: str) -> bool | None:
            view, audit = await self.herd.sandbox(sandbox), await self.herd.audit(sandbox)
            closed = all(source.closed for source in audit.sources)
            return (view.state in SANDBOX_ENDED and not audit.unstored and closed) or None

        async def nothing() -> bool | None:
            return self.cluster.objects("pods") == [] or None

        for sandbox in sandboxes:
            await eventually(partial(settled, sandbox))
            assert (await self.herd.audit(sandbox)).missing == 0
        await eventually(nothing)


async def eventually(condition: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    async with asyncio.timeout(seconds):
        while True:
            with suppress(HerdError):  # it does not exist yet
                if found := await condition():
                    return found
            await asyncio.sleep(0.05)  # other processes send no notifications


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as one:
        yield one


@pytest.fixture(scope="module")
def home(cluster: Cluster) -> Iterator[Path]:
    """The home of a running stack, with a settings file."""
    home = Path(tempfile.mkdtemp(prefix="podded-"))
    settings = SETTINGS.format(image=IMAGE, config=cluster.kubeconfig)
    (home / "herd.yaml").write_text(settings, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    command = [str(preloaded_sandherd()), "--home", str(home), "--config", str(home / "herd.yaml")]
    try:
        up = subprocess.run([*command, "up"], env=environment, check=False, capture_output=True, text=True)
        assert up.returncode == 0, up.stdout + up.stderr
        yield home
    finally:
        subprocess.run([*command, "down"], env=environment, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def line(home: Path, cluster: Cluster) -> AsyncIterator[Line]:
    async with Herd.connect(Context.resolve(home=home)) as herd:
        yield Line(home, herd, cluster)


async def test_task_runs_from_submission_to_its_diff(line: Line) -> None:
    """The image of the pod lacks the worker. No file and no event has the token of the cluster."""
    script = "cat given; echo three >> given; id -u; touch /etc/mine 2>/dev/null || echo as it should be"
    task = await line.submit(script, files={"given": "one\ntwo\n"})
    view = await line.ended(task)
    assert (view.state, view.error) == ("completed", None)
    assert view.sandbox is not None
    await line.whole(view.sandbox)
    final_output = (await line.event(task, "agent.completed"))["data"]["final_output"]
    assert final_output == "one\ntwo\n1000\nas it should be\n"
    changed = (await line.event(task, "agent.file_edited"))["data"]
    assert (changed["file_path"], changed["lines_added"], changed["lines_removed"]) == ("given", 1, 0)
    assert "+three" in changed["diff_preview"]
    assert files_with(line, line.cluster.token) == []
    assert line.cluster.token not in str(await line.events(task))
    assert "NATS USER JWT" not in str(line.cluster.store.history) + str(line.cluster.api.requested)


def files_with(line: Line, secret: str) -> list[Path]:
    """The files with this text in the home of the stack, including logs and streams."""
    files = contents_below(line.home)
    assert any(path.suffix == ".log" for path in files)
    return [path for path, content in files.items() if secret.encode() in content]


async def test_killed_pod_is_recovered(line: Line) -> None:
    """After the kill of every process its files remain, and another worker publishes the remaining events."""
    task = await line.submit(f"echo before; {HOLD}")
    sandbox = await line.began(task)
    uid = line.pod(sandbox)["metadata"]["uid"]
    line.cluster.now(line.cluster.kubelet.containers[uid].kill)
    view = await line.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.WORKER_LOST), view.error
    assert "before" in str(await line.events(task))
    await line.whole(sandbox)


async def test_evicted_pod_is_lost_and_retried(line: Line) -> None:
    """The lost events are reported as `sandbox_lost` with the reason, and a retry runs."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; {HOLD}'
    task = await line.submit(script, retry=RetryPolicy(max_attempts=2, first_delay_seconds=0))
    sandbox = await line.began(task)
    message = "The node was low on resource: memory."
    await line.cluster.later(line.cluster.kubelet.evict(line.pod(sandbox), "Evicted", message))
    view = await line.ended(task)
    assert (view.state, view.attempt) == ("completed", 2), view.error
    failed = (await line.event(task, "sandbox.failed"))["data"]
    assert failed["error_type"] == ErrorType.SANDBOX_LOST
    assert "was evicted by its node: The node was low on resource: memory." in failed["error"]
    assert view.sandbox is not None
    await line.whole(view.sandbox)


async def test_oom_killed_agent_is_distinguished_from_a_failed_one(line: Line) -> None:
    """The error of such an agent is `out_of_memory`."""
    from sandherd.contracts.specs import SandboxLimits

    eats = "exec python3 -c \"b = b'x' * (1 << 30)\""
    task = await line.submit(eats, limits=SandboxLimits(memory_mb=192))
    view = await line.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.OUT_OF_MEMORY), view.error
    assert view.sandbox is not None
    await line.whole(view.sandbox)


async def test_cancelled_task_leaves_no_pod(line: Line) -> None:
    """The pod is removed; earlier events are stored."""
    task = await line.submit(f"echo before; {HOLD}")
    sandbox = await line.began(task)
    await line.herd.cancel(task, reason="enough")
    view = await line.ended(task)
    assert view.state == "cancelled"
    await line.whole(sandbox)
    assert "before" in str(await line.events(task))
