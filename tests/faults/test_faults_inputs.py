"""SIGKILL of the spawner between a task and the one that takes its files."""

import pytest

from sandherd.client.herd import task_spec
from sandherd.contracts.states import TaskState
from sandherd.contracts.task_inputs import TaskInput
from tests.faults.conftest import Stack, eventually

pytestmark = [pytest.mark.timeout(900)]


async def test_result_is_taken_after_the_spawner_was_killed(stack: Stack) -> None:
    """A task gets the result of `build`, which ended before the kill; `gate`, its other dependency, runs meanwhile."""
    async with stack.herd() as herd:
        build = await herd.submit(task_spec("build", ["sh", "-c", "echo 42 >out.txt"], keep_work=True))
        gate = await herd.submit(task_spec("gate", ["sh", "-c", "until test -e go-1; do sleep 0.05; done"]))
        spec = task_spec(
            "test",
            ["grep", "-q", "42", "out.txt"],
            depends_on=(build, gate),
            inputs=(TaskInput(task=build, paths=("out.txt",)),),
        )
        test = await herd.submit(spec)
        assert (await herd.wait(build)).state is TaskState.COMPLETED

        async def running() -> str | None:
            view = await herd.task(gate)
            return view.sandbox if view.state is TaskState.RUNNING else None

        sandbox = await eventually(running)
        assert (await herd.task(test)).state is TaskState.PENDING
        await stack.kill("spawner")
        stack.allow(sandbox, 1)
        view = await herd.wait(test)
        assert (view.state, view.error, view.attempt) == (TaskState.COMPLETED, None, 1)
