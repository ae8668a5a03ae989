"""What goes wrong around a container of a real engine: each ends in a typed event, is whole, and leaves nothing."""

import asyncio
from typing import Any

import pytest

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.specs import Limits, Retry
from tests.e2e.docker.conftest import HOLD

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]
KILL_WORKER = "kill -9 $(pgrep -f sandherd_worker.main | head -1)"


async def test_a_worker_that_is_killed_is_made_up_for_in_its_box(dockered: Any) -> None:
    """Another one says what it could not say any more; the next attempt does the task."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=Retry(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.sh(sandbox, KILL_WORKER)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    lost = (await dockered.event(task, "agent.failed"))["data"]
    assert (lost["error_type"], lost["signal"]) == (ErrorType.WORKER_LOST, 9)
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_a_worker_that_the_kernel_ends_for_memory_is_told_so(dockered: Any) -> None:
    """It is not taken for one that somebody killed."""
    # The kernel is told to take the worker first, and then made to take somebody.
    task = await dockered.submit(HOLD, limits=Limits(memory_mb=192))
    sandbox = await dockered.began(task)
    worker = "$(pgrep -f sandherd_worker.main | head -1)"
    # As the container's root: a worker can't be traced, so its files in /proc are not its user's.
    await dockered.sh(sandbox, f"echo 1000 > /proc/{worker}/oom_score_adj", user="0")
    assert await dockered.sh(sandbox, f"cat /proc/{worker}/oom_score_adj") == "1000"
    await dockered.sh(sandbox, "python3 -c \"b = [b'x' * (1 << 24) for _ in range(64)]\"")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.OUT_OF_MEMORY)
    await dockered.whole(sandbox)


async def test_a_box_that_is_killed_whole_is_recovered(dockered: Any) -> None:
    """Every process of it at once, as by `docker kill`: the spawner has it started again, to say what was left."""
    task = await dockered.submit(f"echo before; {HOLD}")
    sandbox = await dockered.began(task)
    await dockered.docker.containers.container(f"sandherd-{sandbox}").kill(signal="SIGKILL")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.WORKER_LOST)
    await dockered.whole(sandbox)
    assert "before" in str(await dockered.events(task))


async def test_a_container_that_a_stranger_removes_loses_nothing(dockered: Any) -> None:
    """Its volume has what was not said yet: a container is made anew to say that, and the task is tried again."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=Retry(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.remove(sandbox)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    assert (await dockered.event(task, "agent.failed"))["data"]["error_type"] == ErrorType.WORKER_LOST
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_a_sandbox_that_a_stranger_removes_is_lost_and_tried_again(dockered: Any) -> None:
    """With its volume: what it had not said is gone, and that is said: `sandbox_lost`."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; {HOLD}'
    task = await dockered.submit(script, retry=Retry(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await dockered.remove_all(sandbox)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2)
    failed = (await dockered.event(task, "sandbox.failed"))["data"]
    assert failed["error_type"] == ErrorType.SANDBOX_LOST
    await dockered.whole(view.sandbox)


async def test_an_image_that_is_not_there_is_refused_by_its_name(dockered: Any) -> None:
    """At once, and not tried again."""
    task = await dockered.submit("true", image="sandherd-no-such:1", retry=Retry(max_attempts=3))
    view = await dockered.ended(task)
    assert (view.state, view.error_type, view.attempt) == ("failed", ErrorType.RUNTIME_REFUSED, 1)
    assert "sandherd-no-such:1" in view.error
    await dockered.whole()


async def test_a_folder_that_is_not_there_is_refused_by_its_name(dockered: Any) -> None:
    """What a profile mounts and the host lacks is no empty folder."""
    task = await dockered.submit("true", profile="elsewhere")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.RUNTIME_REFUSED)
    assert "not-there" in view.error
    await dockered.whole()


async def test_a_disk_that_is_full_is_told_by_the_worker(dockered: Any) -> None:
    """A small volume stands for it: the agent fails by itself, and all that it said is there."""
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
async def test_an_engine_that_is_started_again_mid_task(dockered: Any, crash: bool) -> None:
    """Its containers end with it. In order, each worker says so itself; after a crash it is recovered. Then again."""
    script = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
    task = await dockered.submit(script, retry=Retry(max_attempts=2, first_delay_seconds=0))
    sandbox = await dockered.began(task)
    await asyncio.to_thread(dockered.engine.kill if crash else dockered.engine.stop)
    await asyncio.to_thread(dockered.engine.start)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2), view.error
    lost = (await dockered.event(task, "agent.failed"))["data"]["error_type"]
    assert lost in {ErrorType.STOPPED, ErrorType.WORKER_LOST}
    await dockered.whole(sandbox, view.sandbox)
    assert "before" in str(await dockered.events(task))


async def test_an_engine_that_is_away_is_asked_again(dockered: Any) -> None:
    """A sandbox that is wanted meanwhile is made once it is back."""
    await asyncio.to_thread(dockered.engine.stop)
    try:
        task = await dockered.submit("true")
        await dockered.event(task, "sandbox.requested")
    finally:
        await asyncio.to_thread(dockered.engine.start)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 1), view.error
    await dockered.whole(view.sandbox)
