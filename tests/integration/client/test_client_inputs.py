"""Tasks begin with files of the tasks on which they depend, with the real services."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd, HerdError, TaskView
from sandherd.client.herd import new_task, task_spec
from sandherd.contracts.states import TaskState
from sandherd.contracts.task_inputs import TaskInput

Sandherd = Callable[..., Any]
BUILD = "mkdir -p dist/deep other; echo one >dist/one; echo two >dist/deep/two; echo no >other/no; ln -s /etc dist/etc"
BATCH = """
tasks:
  - {name: build, text: build, argv: [sh, -c, "mkdir dist; echo 42 >dist/out.txt; echo no >unwanted"]}
  - name: test
    text: test
    argv: [sh, -c, 'test "$(cat dist/out.txt)" = 42 && test ! -e unwanted && echo found']
    depends_on: [build]
    inputs: [{from: build, paths: ["dist/**"]}]
"""


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Sandherd:
    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


async def built(real: Herd, script: str, **more: Any) -> str:
    """Submit a task that stores its result, without waiting for it."""
    return await real.submit(task_spec("build", ["sh", "-c", script], keep_work=True, **more))


async def taken(real: Herd, build: str, paths: list[str], script: str, **more: Any) -> TaskView:
    """The end of a task that takes these paths from another one."""
    inputs = (TaskInput(task=build, paths=tuple(paths)),)
    spec = task_spec("test", ["sh", "-c", script], depends_on=(build,), inputs=inputs, **more)
    return await real.wait(await real.submit(spec))


async def test_task_of_a_file_reads_what_another_has_left(sandherd: Sandherd, tmp_path: Path, real: Herd) -> None:
    """A task gets only the named files; its dependency stores its result automatically."""
    file = tmp_path / "tasks.yaml"
    file.write_text(BATCH)
    status, out, err = await sandherd("tasks", "submit", str(file), "--wait", "-o", "json")
    assert status == 0, out + err
    assert [view.state for view in (await real.tasks()).items] == [TaskState.COMPLETED] * 2


async def test_files_of_a_task_are_taken_by_others(real: Herd) -> None:
    """Every attempt gets the existing named files; anything else is a permanent failure or a rejection."""
    build = await built(real, BUILD)
    await check_folders_files_and_patterns_are_taken(real, build)
    await check_absent_path_is_a_permanent_failure(real, build)
    await check_input_that_names_its_own_archive_is_rejected(real, build)
    await check_retry_takes_the_files_again(real, build)
    await check_task_that_has_left_nothing_fails_its_dependants(real)
    await check_input_of_a_task_that_stores_nothing_is_rejected(real)


async def check_folders_files_and_patterns_are_taken(real: Herd, build: str) -> None:
    """Check that paths stay the same, links that lead out are left out, and the task's own files replace others."""
    script = (
        "test ! -e dist/one && test ! -L dist/etc && test ! -e other && "
        "test $(cat dist/deep/two) = two && test $(cat mine) = mine"
    )
    view = await taken(real, build, ["dist/deep", "dist/*/tw?"], script, files={"mine": "mine\n"})
    assert (view.state, view.error) == (TaskState.COMPLETED, None)
    view = await taken(real, build, ["dist"], "test -f dist/one && test -f dist/deep/two && test ! -L dist/etc")
    assert (view.state, view.error) == (TaskState.COMPLETED, None)


async def check_absent_path_is_a_permanent_failure(real: Herd, build: str) -> None:
    """Check that the failure names path and task, that there is one attempt only, and that no agent starts."""
    view = await taken(real, build, ["dist/one", "one"], "true")
    assert (view.state, view.error_type, view.attempt) == (TaskState.FAILED, "start", 1)
    assert view.error is not None
    assert "'one'" in view.error
    assert build in view.error


async def check_task_that_has_left_nothing_fails_its_dependants(real: Herd) -> None:
    """Check that the failure has the reason, once it is certain that no more events come."""
    view = await taken(real, await built(real, "true"), ["x"], "true")
    assert (view.state, view.error_type) == (TaskState.FAILED, "dependency_failed")
    assert "has stored no result" in str(view.error)


async def check_input_of_a_task_that_stores_nothing_is_rejected(real: Herd) -> None:
    """Check that it is rejected at its submission, with the field and the remedy."""
    build = await real.submit(task_spec("build", ["true"]))
    with pytest.raises(HerdError) as caught:
        await taken(real, build, ["x"], "true")
    assert caught.value.problem.field == "spec.inputs"
    assert "--keep-work" in caught.value.line


async def check_input_that_names_its_own_archive_is_rejected(real: Herd, build: str) -> None:
    """Check that only the spawner decides which archive a worker may fetch."""
    task = new_task()
    one = TaskInput(task=build, paths=("dist",), sandbox="sbx-other")
    await real.submit(task_spec("test", ["true"], depends_on=(build,), inputs=(one,)), task=task)
    with pytest.raises(HerdError, match="set by the spawner only"):
        await real.wait(task)


async def check_retry_takes_the_files_again(real: Herd, build: str) -> None:
    """Check that each attempt begins with the files."""
    view = await taken(real, build, ["dist/one"], "test -e dist/one || exit 4; exit 3")
    assert view.error == "it ended with exit status 3"
    await real.retry(view.task)
    view = await real.wait(view.task)
    assert (view.attempt, view.error) == (2, "it ended with exit status 3")
