"""The commands `exec`, `cp`, `ls`, `runtimes` and `sandboxes`, with the real services."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd
from sandherd.contracts.requests import ExecStatus
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker

Sandherd = Callable[..., Any]
LARGE = bytes(range(256)) * 2048


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Sandherd:
    """Run the command as a separate process: the services of the test log to this process's output."""

    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


@pytest.fixture
async def sandbox(real: Herd, sandherd: Sandherd) -> AsyncIterator[str]:
    """A running sandbox, created by the command."""
    status, out, err = await sandherd("sandboxes", "create", "--ttl", "10m", "--memory", "512m")
    assert (status, err) == (0, "")
    yield out.strip()
    await real.terminate(out.strip())


async def test_exec_passes_output_exit_status_and_ctrl_c_through(
    sandbox: str, real: Herd, started: Callable[..., Any], sandherd: Sandherd
) -> None:
    """`exec` behaves like a local command; a detached one is found by its name, and Ctrl-C ends it."""
    await check_ctrl_c_ends_the_command(sandbox, real, started)  # the first, as this check finds it by its event
    await check_exec_passes_output_and_exit_status_through(sandbox, sandherd)
    await check_detached_command_is_found_by_name(sandbox, sandherd)


async def check_exec_passes_output_and_exit_status_through(sandbox: str, sandherd: Sandherd) -> None:
    """The command's output and exit status are those of `sandherd exec`."""
    assert await sandherd("exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    status, out, err = await sandherd("exec", sandbox, "-o", "json", "--env", "A=1", "--", "sh", "-c", "echo $A")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert (found["stdout"], found["exit_code"], found["state"]) == ("1\n", 0, "exited")
    status, _, err = await sandherd("exec", sandbox, "--timeout", "1s", "--", "sleep", "600")
    assert status == 124
    assert "timed out after" in err
    status, _, err = await sandherd("exec", sandbox, "--", "no-such-program")
    assert status == 126
    assert "could not be started" in err


async def check_detached_command_is_found_by_name(sandbox: str, sandherd: Sandherd) -> None:
    """Check that `--detach` prints a name by which the command is inspected and ended."""
    status, out, _ = await sandherd("exec", sandbox, "--detach", "--", "sh", "-c", "echo begun; sleep 600")
    assert status == 0
    name = out.strip()
    while not (await sandherd("exec", sandbox, "--status", name))[1]:
        pass
    assert (await sandherd("exec", sandbox, "--status", name))[1:] == ("begun\n", f"sandherd: {name}: running\n")
    assert (await sandherd("exec", sandbox, "--kill", name))[0] == 0
    while json.loads((await sandherd("exec", sandbox, "--status", name, "-o", "json"))[1])["state"] == "running":
        pass
    assert (await sandherd("exec", sandbox, "--status", "exc-unknown"))[0] == 1
    name = (await sandherd("exec", "--detach", sandbox, "sh", "-c", "exit 4"))[1].strip()
    while (found := await sandherd("exec", "--status", name, "-o", "json", sandbox))[0] == 0:
        assert json.loads(found[1])["state"] == "running"
    assert found[0] == 4
    assert (await sandherd("exec", "--status", name, sandbox))[0] == 4


async def check_ctrl_c_ends_the_command(sandbox: str, real: Herd, started: Callable[..., Any]) -> None:
    """Check that the sandbox's command ends, and the client exits with status 130, without a traceback."""
    process = await started("exec", sandbox, "--", "sh", "-c", "echo begun; sleep 600")
    assert await process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    events = [event.envelope async for event in real.events(sandbox=sandbox, types=["agent.exec_started"])]
    while not events:
        events = [event.envelope async for event in real.events(sandbox=sandbox, types=["agent.exec_started"])]
    name = events[0]["data"]["exec_id"]
    while (state := await real.connection.request(ExecStatus(sandbox=sandbox, exec=name))).state == "running":
        await asyncio.sleep(0.05)  # on a busy machine it may end after the command that requested that
    assert state.state == "killed"


async def test_files_and_links_are_copied_both_ways(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """A file, a folder, and links inside it are uploaded, listed, and downloaded unchanged.

    Refused are a source that is neither a file nor a folder, a path outside of the work tree, and a file over the cap.
    """
    copies = (check_files_are_copied, check_links_are_copied)
    refusals = (check_source_is_refused, check_path_is_refused, check_size_is_refused)
    for number, check in enumerate((*copies, *refusals)):
        (folder := tmp_path / str(number)).mkdir()
        await check(sandbox, sandherd, folder)


async def check_files_are_copied(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that a file and a folder are copied."""
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "large.bin").write_bytes(LARGE)
    (tmp_path / "src" / "inner" / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (tmp_path / "src" / "inner" / "run.sh").chmod(0o755)
    assert (await sandherd("cp", str(tmp_path / "src" / "large.bin"), f"{sandbox}:"))[0] == 0
    assert (await sandherd("cp", str(tmp_path / "src"), f"{sandbox}:tree"))[0] == 2
    assert (await sandherd("cp", "-r", str(tmp_path / "src"), f"{sandbox}:tree"))[0] == 0
    status, out, _ = await sandherd("ls", sandbox, "-r", "-o", "json")
    assert status == 0
    assert {entry["path"] for entry in json.loads(out)["entries"]} >= {"large.bin", "tree/inner/run.sh"}
    assert (await sandherd("exec", sandbox, "--", "tree/inner/run.sh"))[1] == "hi\n"
    # Into an existing folder, under its own name.
    assert (await sandherd("cp", str(tmp_path / "src" / "large.bin"), f"{sandbox}:tree/inner"))[0] == 0
    status, out, _ = await sandherd("cp", f"{sandbox}:tree/inner/large.bin", str(tmp_path / "back.bin"), "-o", "json")
    assert status == 0
    assert (tmp_path / "back.bin").read_bytes() == LARGE
    assert json.loads(out)["size"] == len(LARGE)
    assert (await sandherd("cp", f"{sandbox}:tree", str(tmp_path / "out")))[0] == 2
    assert (await sandherd("cp", "-r", f"{sandbox}:tree", str(tmp_path / "out")))[0] == 0
    assert (tmp_path / "out" / "large.bin").read_bytes() == LARGE
    assert (tmp_path / "out" / "inner" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not list(tmp_path.glob(".sandherd-*"))


async def check_source_is_refused(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that the refusal is one line, and that nothing is read: a device has no end, and a pipe would block."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        status, _, err = await sandherd("cp", path, f"{sandbox}:z")
        assert (status, "neither a file nor a folder" in err, err.count("\n")) == (2, True, 1)


async def check_links_are_copied(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that links exist in the sandbox; here they are left out and named in one line, and other files arrive."""
    for name in ("a/one", "z/two"):
        (tmp_path / "src" / name).parent.mkdir(parents=True)
        (tmp_path / "src" / name).write_text(name)
    (tmp_path / "src/m").mkdir()
    (tmp_path / "src/m/python").symlink_to("/usr/bin/python3")
    (tmp_path / "src/m/python3").symlink_to("python")
    status, _, err = await sandherd("cp", "-r", str(tmp_path / "src"), f"{sandbox}:linked")
    assert (status, err) == (0, "")
    assert await sandherd("exec", sandbox, "--", "linked/m/python3", "-c", "print(3)") == (0, "3\n", "")
    status, _, err = await sandherd("cp", "-r", f"{sandbox}:linked", str(tmp_path / "out"))
    assert status == 0
    assert err == "sandherd: left out a link that may lead out of the folder: m/python -> /usr/bin/python3\n"
    assert {path.name for path in (tmp_path / "out").rglob("*")} == {"a", "one", "m", "python3", "z", "two"}


async def check_path_is_refused(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that a path is refused in both directions, in one line."""
    here, there = tmp_path / "x", tmp_path / "y"
    here.write_text("x")
    for path in ("../x", "/etc/passwd", "a/../../x"):
        for words in (["cp", str(here), f"{sandbox}:{path}"], ["cp", f"{sandbox}:{path}", str(there)]):
            status, _, err = await sandherd(*words)
            assert (status, err.count("\n")) == (1, 1), (words, err)
            assert not there.exists(), path


async def check_size_is_refused(sandbox: str, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that the error names the cap, and that no byte is sent."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(257 << 20)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "big").hardlink_to(tmp_path / "big")
    for words in (["cp", str(tmp_path / "big")], ["cp", "-r", str(tmp_path / "folder")]):
        status, _, err = await sandherd(*words, f"{sandbox}:x")
        assert status == 2
        assert str(256 << 20) in err


async def test_available_options_are_listed_and_a_batch_is_submitted(
    real: Herd, sandherd: Sandherd, tmp_path: Path
) -> None:
    """Unavailable options are usage errors; no task of a batch is submitted before its dependencies."""
    await check_available_options_are_listed(sandherd)
    await check_batch_is_submitted_in_dependency_order(real, sandherd, tmp_path)


async def check_available_options_are_listed(sandherd: Sandherd) -> None:
    """Check that `runtimes` shows what can be requested; other requests are usage errors with the available options.

    With `-o name` each line is the name of a runtime.
    """
    status, out, _ = await sandherd("runtimes")
    assert status == 0
    assert "process" in out
    found = json.loads((await sandherd("runtimes", "-o", "json"))[1])
    assert found["harnesses"] == ["command", "claude", "openhands", "acp"]
    names = [one["runtime"] for one in found["runtimes"]]
    assert await sandherd("runtimes", "-o", "name") == (0, "".join(f"{name}\n" for name in names), "")
    for words, error in (
        (["run", "x", "--runtime", "moon", "--", "true"], "there is: process"),
        (["run", "x", "--profile", "large", "--", "true"], "omit --profile"),
        (["sandboxes", "create", "--ttl", "20d"], "at most 7d"),
    ):
        status, _, err = await sandherd(*words)
        assert status == 2
        assert error in err


async def check_batch_is_submitted_in_dependency_order(real: Herd, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that no task is submitted before one that it waits for, and that a list shows their states."""
    tasks = [
        {"name": "last", "text": "last", "argv": ["true"], "depends_on": ["first"]},
        {"name": "first", "text": "first", "argv": ["true"], "priority": "high"},
    ]
    (tmp_path / "tasks.json").write_text(json.dumps({"tasks": tasks}))
    status, out, _ = await sandherd("tasks", "submit", str(tmp_path / "tasks.json"), "-o", "json")
    given = {task["name"]: task for task in json.loads(out)["tasks"]}
    assert status == 0
    assert list(given) == ["first", "last"]
    assert given["last"]["depends_on"] == [given["first"]["task"]]
    done = await asyncio.gather(*(real.wait(task["task"]) for task in given.values()))
    assert [view.state for view in done] == ["completed", "completed"]
    status, out, _ = await sandherd("tasks", "list")
    assert "high" in out
    assert "1/3" not in out  # they have ended


async def test_sandbox_commands_print_its_state(sandbox: str, sandherd: Sandherd, herd: Broker) -> None:
    """`pause`, `resume` and `extend` each print the state, or why it is impossible.

    `prune`, which is for operators, counts existing and wanted sandboxes.
    """
    assert (await sandherd("sandboxes", "prune"))[0] == 1
    operator = ["--credentials", str(herd.credentials(Principal.OPERATOR))]
    status, out, _ = await sandherd(*operator, "sandboxes", "prune", "-o", "json")
    assert status == 0
    assert json.loads(out) == {"present": 1, "records": 1, "orphans": [], "lost": []}
    assert (await sandherd(*operator, "sandboxes", "prune"))[0] == 0
    assert (await sandherd("sandboxes", "pause", sandbox))[:2] == (0, f"{sandbox} is paused\n")
    assert (await sandherd("sandboxes", "resume", sandbox))[:2] == (0, f"{sandbox} is running\n")
    status, out, _ = await sandherd("sandboxes", "extend", sandbox, "2h", "-o", "json")
    assert status == 0
    assert json.loads(out)["sandbox"] == sandbox
    status, _, err = await sandherd("sandboxes", "extend", sandbox, "20d")
    assert status == 2
    assert "was refused" in err
    status, _, err = await sandherd("sandboxes", "extend", sandbox, "999d")
    assert (status, "use TIME 7d or less" in err) == (2, True), err
