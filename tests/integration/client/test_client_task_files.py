"""Tasks get folders and files, and their results are read after the end, with the real services."""

import asyncio
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd
from sandherd.client.herd import new_task, task_spec
from sandherd.client.sandboxes import transfer
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TaskState
from tests.patience import PATIENCE
from tests.polling import eventually

Sandherd = Callable[..., Any]
LARGE = bytes(range(256)) * 2048
EDIT = """
set -e
test "$(wc -c <large.bin)" = 524288
test ! -e ignored.log
sed -i s/two/TWO/ src/text.txt
rm src/gone.txt
printf 'new\\n' >src/new.txt
printf '\\001\\000\\002' >>large.bin
mkdir out; printf 'report\\n' >out/report.txt
"""


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Sandherd:
    """Run the command as a separate process: the services of the test log to this process's output."""

    async def run(*words: str) -> tuple[int, bytes, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out, err.decode()

    return run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / ".gitignore").write_text("*.log\n")
    (root / "ignored.log").write_text("x")
    (root / "src/text.txt").write_text("one\ntwo\nthree\n")
    (root / "src/gone.txt").write_text("bye\n")
    (root / "large.bin").write_bytes(LARGE)
    return root


async def only_task(real: Herd) -> TaskView:
    """Wait until the spawner has the command of the only task: `run --no-follow` does not wait for that."""

    async def submitted() -> list[TaskView]:
        return (await real.tasks()).items

    found: list[TaskView] = await eventually(submitted)
    [view] = found
    return view


async def test_folder_is_uploaded_and_its_changes_are_downloaded(
    real: Herd, sandherd: Sandherd, repository: Path, tmp_path: Path
) -> None:
    """`run --dir` uploads a folder; after the end `files` lists, `cp` copies, and `diff` is a patch to the result."""
    extra = tmp_path / "extra.bin"
    extra.write_bytes(LARGE[:1000])
    status, _, err = await sandherd(
        "run", "edit", "--dir", str(repository), "--file", str(extra), "--no-follow", "--", "sh", "-c", EDIT
    )
    assert (status, err) == (0, "")
    task = (await only_task(real)).task
    assert (await real.wait(task)).state is TaskState.COMPLETED
    status, out, err = await sandherd("files", task, "-o", "json")
    listed = {entry["path"]: entry["size"] for entry in json.loads(out)["entries"]}
    assert (status, err) == (0, "")
    assert listed["large.bin"] == len(LARGE) + 3
    assert listed["extra.bin"] == 1000
    assert "src/gone.txt" not in listed
    status, patch, err = await sandherd("diff", task)
    assert (status, err) == (0, "")
    await asyncio.to_thread(subprocess.run, ["git", "apply"], cwd=repository, input=patch, check=True)
    assert (repository / "src/text.txt").read_text() == "one\nTWO\nthree\n"
    assert not (repository / "src/gone.txt").exists()
    assert (repository / "large.bin").read_bytes() == LARGE + b"\1\0\2"
    target = tmp_path / "target"
    target.mkdir()
    assert (await sandherd("cp", f"{task}:out/report.txt", str(target)))[0] == 0
    assert (target / "report.txt").read_text() == "report\n"
    assert (await sandherd("cp", f"{task}:src", str(target)))[0] == 2
    assert (await sandherd("cp", "-r", f"{task}:src", str(target)))[0] == 0
    assert (target / "src/new.txt").read_text() == "new\n"
    for path in ("../x", "/etc/passwd", "src/none"):
        status, _, err = await sandherd("cp", f"{task}:{path}", str(target))
        assert (status > 0, err.count("\n")) == (True, 1)


async def test_every_attempt_begins_with_the_folder(real: Herd, sandherd: Sandherd, repository: Path) -> None:
    """A retry by a user also begins with the folder as it was, although it has changed here."""
    script = "test ! -e mark || exit 9; touch mark; exit 3"
    await sandherd("run", "x", "--dir", str(repository), "--no-follow", "--", "sh", "-c", script)
    task = (await only_task(real)).task
    assert (await real.wait(task)).error == "it ended with exit status 3"
    (repository / "mark").touch()
    assert (await sandherd("tasks", "retry", task))[0] == 0
    view = await real.wait(task)
    assert (view.attempt, view.error) == (2, "it ended with exit status 3")


async def check_task_without_a_stored_work_tree_names_the_option(real: Herd, sandherd: Sandherd) -> None:
    """Check that the status is 1, with one line."""
    task = await real.submit(task_spec("x", ["sh", "-c", "touch here"]))
    await real.wait(task)
    for command in ("files", "diff"):
        status, _, err = await sandherd(command, task)
        assert (status, err.count("\n")) == (1, 1)
        assert "--keep-work" in err


async def test_files_of_a_running_task_are_copied_from_its_sandbox(
    real: Herd, sandherd: Sandherd, tmp_path: Path
) -> None:
    """The task's name suffices for `cp`; it also works after the task's end, if its work tree was stored."""
    await check_task_without_a_stored_work_tree_names_the_option(real, sandherd)
    argv = ["sh", "-c", "echo half >note; until test -e go; do sleep 0.1; done; echo whole >note"]
    task = await real.submit(task_spec("x", argv, keep_work=True))
    async with real.follow(task=task) as events:
        async for event in events:
            if event.type == "agent.tool_use":
                break
    sandbox = (await real.task(task)).sandbox
    assert sandbox is not None
    async with asyncio.timeout(PATIENCE):
        while not any(entry.size for entry in (await real.files(sandbox)).entries):
            await asyncio.sleep(0.02)
    assert (await sandherd("cp", f"{task}:note", str(tmp_path / "one")))[0] == 0
    assert (tmp_path / "one").read_text() == "half\n"
    await real.write(sandbox, b"", "go")
    await real.wait(task)
    assert (await sandherd("cp", f"{task}:note", str(tmp_path / "two")))[0] == 0
    assert (tmp_path / "two").read_text() == "whole\n"


def an_archive(*entries: tuple[str, str]) -> io.BytesIO:
    """A tar archive of files, or of links if a target is given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, target in entries:
            entry = tarfile.TarInfo(name)
            if target:
                entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out


async def submitted(real: Herd, archive: io.BytesIO, tmp_path: Path, script: str) -> TaskView:
    """Submit a task that begins with an archive that our clients would not create."""
    task = new_task()
    path = tmp_path / "archive.tar"
    path.write_bytes(archive.getvalue())
    with path.open("rb") as file:
        content = transfer.archive_source(file)
        work = await transfer.store(real.connection, real.project, task, content, report=transfer.silent)
    spec = task_spec("x", ["sh", "-c", script], work=work, files={"link/x": "text"})
    return await real.wait(await real.submit(spec, task=task))


async def test_archive_leads_nowhere_out_of_the_work_tree(real: Herd, tmp_path: Path) -> None:
    """An archive with an entry that leads out is refused whole and permanently; links are left out.

    Neither the task's own files nor its agent's are written through a link.
    """
    for name in ("../outside", "/tmp/outside", "a/../../outside"):
        view = await submitted(real, an_archive(("inside", ""), (name, "")), tmp_path, "true")
        assert (view.state, view.error_type, view.attempt) == (TaskState.FAILED, "start", 1)
        assert view.error is not None
        assert "leads out of the folder" in view.error
    archive = an_archive(("link", "/tmp"), ("up", "../.."), ("inside", "link"))
    script = 'test ! -L link && test ! -L up && test -L inside && test "$(cat link/x)" = text && test ! -e /tmp/x'
    view = await submitted(real, archive, tmp_path, script)
    assert (view.state, view.error) == (TaskState.COMPLETED, None)
