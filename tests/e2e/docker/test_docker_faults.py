"""Faults of a container of a real engine: each leads to a typed event, with a whole history and nothing left."""

import asyncio
from typing import Any

import pytest

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.specs import RetryPolicy, SandboxLimits
from tests.e2e.docker.conftest import HOLD

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]
KILL_WORKER = "kill -9 $(pgrep -f sandherd_worker.main | head -1)"


async def test_killed_worker_is_recovered_in_its_container(dockered: Any) -> None:
    """Another worker publishes what the first could not; the next attempt completes the task."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=RetryPolicy(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.sh(sandbox, KILL_WORKER)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    lost = (await dockered.event(task, "agent.failed"))["data"]
    assert (lost["error_type"], lost["signal"]) == (ErrorType.WORKER_LOST, 9)
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_oom_killed_worker_is_reported_as_such(dockered: Any) -> None:
    """A kill for memory has its own error type."""
    # The kernel is configured to choose the worker first, and then made to kill a process.
    task = await dockered.submit(HOLD, limits=SandboxLimits(memory_mb=192))
    sandbox = await dockered.began(task)
    worker = "$(pgrep -f sandherd_worker.main | head -1)"
    # As the container's root: a worker can't be traced, so its user does not own its files in /proc.
    await dockered.sh(sandbox, f"echo 1000 > /proc/{worker}/oom_score_adj", user="0")
    assert await dockered.sh(sandbox, f"cat /proc/{worker}/oom_score_adj") == "1000"
    await dockered.sh(sandbox, "python3 -c \"b = [b'x' * (1 << 24) for _ in range(64)]\"")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.OUT_OF_MEMORY)
    await dockered.whole(sandbox)


async def test_killed_container_is_recovered(dockered: Any) -> None:
    """After the kill of every process, as by `docker kill`, the spawner restarts it to publish the remaining events."""
    task = await dockered.submit(f"echo before; {HOLD}")
    sandbox = await dockered.began(task)
    await dockered.docker.containers.container(f"sandherd-{sandbox}").kill(signal="SIGKILL")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.WORKER_LOST)
    await dockered.whole(sandbox)
    assert "before" in str(await dockered.events(task))


async def test_externally_removed_container_loses_no_event(dockered: Any) -> None:
    """The volume has the unpublished events: a new container publishes them, and the task is retried."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=RetryPolicy(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.remove(sandbox)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    assert (await dockered.event(task, "agent.failed"))["data"]["error_type"] == ErrorType.WORKER_LOST
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_externally_removed_sandbox_is_lost_and_retried(dockered: Any) -> None:
    """Without the volume unpublished events are lost, which is reported as `sandbox_lost`."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; {HOLD}'
    task = await dockered.submit(script, retry=RetryPolicy(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.remove_all(sandbox)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    failed = (await dockered.event(task, "sandbox.failed"))["data"]
    assert failed["error_type"] == ErrorType.SANDBOX_LOST
    await dockered.whole(view.sandbox)


async def test_missing_image_is_refused_by_name(dockered: Any) -> None:
    """The refusal comes at once, and is not retried."""
    task = await dockered.submit("true", image="sandherd-no-such:1", retry=RetryPolicy(max_attempts=3))
    view = await dockered.ended(task)
    assert (view.state, view.error_type, view.attempt) == ("failed", ErrorType.RUNTIME_REFUSED, 1)
    assert "sandherd-no-such:1" in view.error
    await dockered.whole()


async def test_missing_mount_source_is_refused_by_name(dockered: Any) -> None:
    """A folder of a profile that the host lacks is not mounted as an empty folder."""
    task = await dockered.submit("true", profile="elsewhere")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.RUNTIME_REFUSED)
    assert "not-there" in view.error
    await dockered.whole()


async def test_full_disk_is_reported_by_the_worker(dockered: Any) -> None:
    """On a small volume, in its place, the agent fails by itself, and all of its output is stored."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=1777"}
    await dockered.docker.volumes.create({"Name": "sandherd-test-small", "DriverOpts": options})
    try:
        task = await dockered.submit("head -c 4000000 /dev/zero > /small/file", profile="full")
        view = await dockered.ended(task)
        assert (view.state, view.error_type) == ("failed", ErrorType.EXIT_STATUS)
        await dockered.whole(view.sandbox)
        assert "No space left" in str(await dockered.events(task))
    finally:
        await (await dockered.docker.volumes.get("sandherd-test-small")).delete(force=True)


@pytest.mark.parametrize("crash", [False, True], ids=["in order", "by a crash"])
async def test_engine_restart_during_a_task_is_recovered(dockered: Any, crash: bool) -> None:
    """Containers end with the engine, and their tasks then run again.

    After an orderly stop each worker reports it; after a crash it is recovered.
    """
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=RetryPolicy(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await asyncio.to_thread(dockered.engine.kill if crash else dockered.engine.stop)
    await asyncio.to_thread(dockered.engine.start)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2), view.error
    lost = (await dockered.event(task, "agent.failed"))["data"]["error_type"]
    assert lost in {ErrorType.STOPPED, ErrorType.WORKER_LOST}
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_sandbox_is_created_once_the_engine_is_back(dockered: Any) -> None:
    """A sandbox that is requested while the engine is down is created later."""
    await asyncio.to_thread(dockered.engine.stop)
    try:
        task = await dockered.submit("true")
        await dockered.event(task, "sandbox.requested")
    finally:
        await asyncio.to_thread(dockered.engine.start)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 1), view.error
    await dockered.whole(view.sandbox)
