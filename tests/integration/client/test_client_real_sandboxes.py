"""Sandboxes without a task, commands and files in them, and attempts, with the real services."""

import hashlib
import io
from pathlib import Path

import pytest

from sandherd.client import Herd, HerdError
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.client.herd import task_spec
from sandherd.client.sandboxes.execution import exit_status
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import SandboxSpec
from sandherd.contracts.states import SandboxState, TaskState

QUICK = FollowLimits(check=0.5, retry=0.05)
LARGE = bytes(range(256)) * 2048
"""The content of four chunks."""


async def written(real: Herd, sandbox: str, *argv: str, **more: object) -> tuple[int, bytes, bytes]:
    """Run a command to its end; returns its status and its output."""
    execution = await real.exec(sandbox, argv, **more)  # type: ignore[arg-type]  # as `exec` has them
    streams = {"stdout": b"", "stderr": b""}
    async for piece in execution.output():
        streams[piece.stream] += piece.data
    assert execution.state is not None
    return exit_status(execution.state), streams["stdout"], streams["stderr"]


async def test_sandboxes_are_created_used_and_ended(real: Herd, tmp_path: Path) -> None:
    """Sandboxes run commands, store files, are paused, resumed, extended and ended; impossible ones are refused."""
    await check_unavailable_options_are_refused_before_sending(real)
    await check_sandbox_without_a_task_is_used(real, tmp_path)
    await check_sandbox_is_paused_resumed_and_extended(real)
    await check_killed_command_states_its_end(real)


async def test_task_is_followed_over_all_its_attempts(real: Herd) -> None:
    """A task is followed over retries by the spawner and by a user, live and from the history."""
    await check_task_is_followed_over_its_attempts(real)
    await check_task_retried_by_hand_is_followed_to_its_last_end(real)


async def check_sandbox_without_a_task_is_used(real: Herd, tmp_path: Path) -> None:
    """Check that a sandbox runs commands, stores and returns files unchanged, and ends."""
    view = await real.create(SandboxSpec(ttl_seconds=600, files={"hello.txt": "hello"}))
    assert view is not None
    assert view.state is SandboxState.RUNNING
    sandbox = view.sandbox
    assert await written(real, sandbox, "cat", "hello.txt") == (0, b"hello", b"")
    assert (await written(real, sandbox, "sh", "-c", "cat; echo no >&2; exit 3", stdin=b"in")) == (3, b"in", b"no\n")
    assert (await written(real, sandbox, "sleep", "600", timeout=1))[0] == 124
    assert (await written(real, sandbox, "no-such-program"))[0] == 126
    (tmp_path / "large.bin").write_bytes(LARGE)
    reported: list[tuple[int, int]] = []
    put = await real.upload(
        sandbox, tmp_path / "large.bin", "in/large.bin", on_progress=lambda *far: reported.append(far)
    )
    assert put.sha256 == hashlib.sha256(LARGE).hexdigest()
    assert reported[-1] == (len(LARGE), len(LARGE))
    assert [entry.path for entry in (await real.files(sandbox, "in")).entries] == ["in/large.bin"]
    out = io.BytesIO()
    await real.download(sandbox, "in/large.bin", out)
    assert out.getvalue() == LARGE
    await real.terminate(sandbox)
    async for _ in real.follow(sandbox=sandbox, limits=QUICK):
        pass
    with pytest.raises(HerdError, match="has ended") as raised:
        await real.exec(sandbox, ["true"])
    assert raised.value.problem.code is Code.CONFLICT


async def check_sandbox_is_paused_resumed_and_extended(real: Herd) -> None:
    """Check that each call returns when it is done, and that an impossible one raises the reason."""
    view = await real.create(SandboxSpec(ttl_seconds=600))
    assert view is not None
    can_pause = (await real.catalogue()).runtimes[0].can_pause
    assert can_pause
    assert (await real.pause(view.sandbox)).state is SandboxState.PAUSED
    with pytest.raises(HerdError, match="paused"):
        await real.exec(view.sandbox, ["true"])
    assert (await real.resume(view.sandbox)).state is SandboxState.RUNNING
    longer = await real.extend(view.sandbox, 3600)
    assert longer.expires_at is not None
    assert view.expires_at is not None
    assert longer.expires_at > view.expires_at
    with pytest.raises(HerdError, match=r"extend .* was refused"):
        await real.extend(view.sandbox, 30 * 86_400)
    await real.terminate(view.sandbox)
    with pytest.raises(HerdError, match=r"is (terminated|stopping)") as raised:
        await real.extend(view.sandbox, 1)
    assert raised.value.problem.code is Code.CONFLICT


async def check_killed_command_states_its_end(real: Herd) -> None:
    """Check that its state says that it was killed, and that its children have ended."""
    view = await real.create()
    assert view is not None
    execution = await real.exec(view.sandbox, ["sleep", "600"])
    await execution.end()
    state = await real.execution(view.sandbox, execution.name).poll()
    assert state.state == "killed"
    await real.terminate(view.sandbox)


async def check_unavailable_options_are_refused_before_sending(real: Herd) -> None:
    """Check that the errors of an unknown runtime or profile and of too much memory name what is allowed.

    Nothing reaches the spawner.
    """
    for spec, words in (
        (SandboxSpec(runtime="moon"), "there is: process"),
        (SandboxSpec(profile="large"), "there is no profile 'large'"),
        (SandboxSpec(ttl_seconds=2_000_000), "2000000s was requested; at most 7d is allowed"),
    ):
        with pytest.raises(HerdError, match=words) as raised:
            await real.create(spec)
        assert raised.value.problem.code is Code.INVALID_FIELD
    assert not (await real.sandboxes()).items


async def check_task_is_followed_over_its_attempts(real: Herd) -> None:
    """Check that both sandboxes are followed to the end, although the first attempt fails."""
    again = 'test "$SANDHERD_ATTEMPT" = 2 || exit 7'
    retry = {"max_attempts": 3, "first_delay_seconds": 0, "also": ["exit_status"]}
    async with real.follow(task="task-again", fresh=True, limits=QUICK) as following:
        await real.submit(task_spec("again", ["sh", "-c", again], retry=retry), task="task-again")
        types = [event.type async for event in following]
    assert following.is_complete
    assert len(following.sandboxes) == 2
    assert types.count("task.retry_scheduled") == 1
    assert types.count("agent.started") == 2
    assert types[-1] == "task.completed"
    assert "task.failed" not in types


async def check_task_retried_by_hand_is_followed_to_its_last_end(real: Herd) -> None:
    """Check that the first end is shown in its place, and that the following continues to the last one."""
    fails = 'test "$SANDHERD_ATTEMPT" = 2'
    await real.submit(task_spec("once", ["sh", "-c", fails], retry={"max_attempts": 1}), task="task-once")
    assert (await real.wait("task-once")).state is TaskState.FAILED
    assert (await real.retry("task-once")).state is not TaskState.FAILED
    assert (await real.wait("task-once")).state is TaskState.COMPLETED
    types = [event.type async for event in real.follow(task="task-once", limits=QUICK)]
    assert types.index("task.failed") < types.index("task.retry_scheduled")
    assert types[-1] == "task.completed"
    with pytest.raises(HerdError, match="completed"):
        await real.retry("task-once")
