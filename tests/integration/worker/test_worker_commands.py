"""Commands in a sandbox, requested of a real worker over a real broker."""

import asyncio
import signal
import sys
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    ExecState,
    WorkerExec,
    WorkerExecKill,
    WorkerExecStatus,
)
from sandherd.contracts.subjects import sandbox_request_subject
from sandherd_worker.access.commands import MAX_RUNNING
from tests.late_commands import ran_out_of_time
from tests.patience import PATIENCE

SECRET = "correct-horse-battery-staple"


@pytest.fixture
async def bare(sandbox: Any) -> Any:
    """A sandbox without a task, whose worker runs."""
    sandbox.bare(env={"COLOUR": "green", "PASSPHRASE": SECRET}, secret_env=["PASSPHRASE"], files={"a/b.txt": "hi\n"})
    return await sandbox.start()


def written(state: ExecState, stream: str = "stdout") -> bytes:
    return b"".join(piece.data for piece in state.output if piece.stream == stream)


def alive(process: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_command_runs_in_the_work_tree_with_both_outputs(bare: Any) -> None:
    """A command has variables, standard input and an exit code, and events are published for it."""
    script = "pwd; echo $COLOUR $SIZE; cat; cat b.txt; echo oh >&2; exit 3"
    state = await bare.exec("/bin/sh", "-c", script, cwd="a", env={"SIZE": "5"}, stdin=b"given\n")
    assert (state.state, state.exit_code, state.signal) == ("exited", 3, None)
    assert written(state) == f"{bare.work}/a\ngreen 5\ngiven\nhi\n".encode()
    assert written(state, "stderr") == b"oh\n"
    assert state.started_at <= state.ended_at
    completed = (await bare.event("exec_completed")).data
    assert (completed.exec_id, completed.state, completed.exit_code) == (state.exec, "exited", 3)
    assert completed.output_bytes == len(written(state)) + 3
    started = (await bare.event("exec_started")).data
    assert (started.exec_id, started.command[0], started.cwd) == (state.exec, "/bin/sh", "a")


async def test_command_is_killed_before_its_worker_when_memory_is_short(bare: Any) -> None:
    """When memory is short, the kernel kills a started command before the worker."""
    script, name = "until [ -e go ]; do sleep 0.02; done; cat /proc/self/oom_score_adj", new_name("exc")
    await bare.ask(WorkerExec(exec=name, command=["/bin/sh", "-c", script]))
    (bare.work / "go").touch()
    worker = int(Path(f"/proc/{bare.process.pid}/oom_score_adj").read_text())
    assert int(written(await bare.completed(name))) == worker + 500


async def test_worker_credential_does_not_reach_a_command(bare: Any) -> None:
    """A command's environment has neither the broker's address nor the path of the credentials."""
    variables = written(await bare.exec("/usr/bin/env")).decode()
    assert f"SANDHERD_SANDBOX_ID={bare.name}" in variables
    assert "NATS_URL" not in variables
    assert "SANDHERD_CREDENTIALS" not in variables


async def test_binary_output_is_unchanged(bare: Any) -> None:
    """Every byte arrives unchanged, also invalid UTF-8."""
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 64)"
    assert written(await bare.exec(sys.executable, "-c", program)) == bytes(range(256)) * 64


async def test_two_mebibytes_of_output_are_complete_and_ordered(bare: Any) -> None:
    """Two MiB of output are complete and in order: each chunk is requested from the end of the previous one."""
    lines = "".join(f"line {number}\n" for number in range(200_000)).encode()
    state = await bare.exec(sys.executable, "-c", "for n in range(200_000): print('line', n)")
    assert len(lines) > 2 * 1024 * 1024
    assert written(state) == lines
    assert state.dropped_bytes == 0


async def test_output_of_a_command_is_redacted(bare: Any) -> None:
    """A secret is removed from the output, also if it comes in two parts, and from the events."""
    script = "printf correct-horse; sleep 0.2; echo -battery-staple; echo $PASSPHRASE >&2"
    state = await bare.exec("/bin/sh", "-c", script)
    assert (written(state), written(state, "stderr")) == (b"[redacted]\n", b"[redacted]\n")
    await bare.exec("/bin/echo", SECRET)
    events = await bare.events("exec_started")
    assert SECRET not in str(events)


async def test_command_requested_twice_runs_once(bare: Any) -> None:
    """The name identifies the command; another command of that name is refused."""
    question = WorkerExec(exec="exc-1", command=["/bin/sh", "-c", "echo x >> runs"])
    first, second = await asyncio.gather(bare.ask(question), bare.ask(question))
    assert first.exec == second.exec == "exc-1"
    assert (await bare.completed("exc-1")).state == (await bare.ask(question)).state == "exited"
    assert (bare.work / "runs").read_text() == "x\n"
    with pytest.raises(RefusedError) as refusal:
        await bare.ask(WorkerExec(exec="exc-1", command=["/bin/true"]))
    assert refusal.value.problem.code == "conflict"


async def test_killed_command_ends_with_all_its_children(bare: Any, eventually: Any) -> None:
    """A grandchild in its own session ends too, although its parent has exited."""
    script = "setsid sh -c 'sleep 600 & echo $! > orphan; exit' & sleep 600 & echo $! > child; echo up; wait; sleep 600"
    started = await bare.ask(WorkerExec(exec="exc-1", command=["/bin/sh", "-c", script]))
    assert started.state == "running"
    noted = [bare.work / name for name in ("child", "orphan")]
    await eventually(lambda: all(path.exists() and path.read_text() for path in noted), "both")
    processes = [int(path.read_text()) for path in noted]
    assert all(alive(process) for process in processes)
    await bare.ask(WorkerExecKill(exec="exc-1", signal="KILL"))
    await eventually(lambda: not any(alive(process) for process in processes), "their end")
    state = await bare.completed("exc-1")
    assert (state.state, state.signal) == ("killed", 9)
    assert written(state) == b"up\n"


async def test_background_process_of_a_command_ends_with_it(bare: Any, eventually: Any) -> None:
    """A background process neither delays the command's end nor outlives it."""
    state = await bare.exec("/bin/sh", "-c", "sleep 600 & echo $!")
    assert state.state == "exited"
    assert not alive(int(written(state)))


async def test_command_ends_at_its_time_limit(bare: Any) -> None:
    """A command that ignores SIGTERM ends at its time limit, too."""
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    state = await ran_out_of_time(
        lambda seconds: bare.exec("/bin/sh", "-c", script, timeout_seconds=ceil(seconds)), written
    )
    assert (state.state, state.signal) == ("timed_out", 9)
    assert written(state) == b"up\n"
    assert (await bare.event("exec_completed")).data.state == "timed_out"


async def test_command_that_cannot_start_states_why(bare: Any) -> None:
    """A command that can't start has a reply with a state like any other."""
    state = await bare.exec("/no/such/program")
    assert (state.state, state.error) == ("failed", "/no/such/program: No such file or directory")
    assert (await bare.event("exec_completed")).data.state == "failed"


async def test_command_outside_of_the_work_tree_is_refused(bare: Any) -> None:
    """A command in a folder behind a link that leads out of the work tree is refused, too."""
    (bare.work / "out").symlink_to("/tmp")
    for cwd in ("..", "/tmp", "a/../../x", "out"):
        with pytest.raises(RefusedError) as refusal:
            await bare.exec("/bin/true", cwd=cwd)
        assert (refusal.value.problem.code, refusal.value.problem.field) == ("refused", "cwd"), cwd


async def test_commands_over_the_limit_are_refused(bare: Any) -> None:
    """The error has the remedy; running commands are unaffected, and a freed place is used."""
    for number in range(MAX_RUNNING):
        await bare.ask(WorkerExec(exec=f"exc-{number}", command=["/bin/sleep", "600"], wait_seconds=0))
    with pytest.raises(RefusedError) as refusal:
        await bare.ask(WorkerExec(exec="exc-more", command=["/bin/true"]))
    assert (refusal.value.problem.code, bool(refusal.value.problem.remedy)) == ("conflict", True)
    await bare.ask(WorkerExecKill(exec="exc-0", signal="KILL"))
    await bare.completed("exc-0")
    assert (await bare.exec("/bin/true")).state == "exited"


async def test_invalid_request_is_refused_and_affects_no_other(bare: Any) -> None:
    """Whatever is sent on the worker's subjects, there is a reply, and the next request is processed."""
    assert (await bare.exec("/bin/true")).exit_code == 0
    for verb in ("exec", "exec_status", "exec_kill", "list_files", "upload", "download"):
        subject = sandbox_request_subject(f"worker.{verb}", "default", bare.name)
        for document in (b"", b"\xff\x00", b"[]", b'{"exec": 5}', b'{"path": "a\\u0000"}', b'{"x":' * 5000):
            reply = await bare.desk.bus.request(subject, document, timeout=PATIENCE)
            assert b'"error"' in reply, (verb, document[:20], reply)
    with pytest.raises(RefusedError) as refusal:
        await bare.ask(WorkerExecStatus(exec="exc-nobody"))
    assert refusal.value.problem.code == "not_found"
    assert f"list the commands of {bare.name}" in (refusal.value.problem.remedy or "")
    assert (await bare.exec("/bin/true")).exit_code == 0


async def test_command_and_agent_end_independently(sandbox: Any, eventually: Any) -> None:
    """While the sandbox lingers a command continues after the agent's end; the end of the worker ends it."""
    sandbox.task("while ! test -e enough; do sleep 0.05; done", linger_seconds=600)
    await sandbox.start()
    command = ["/bin/sh", "-c", "sleep 600 & echo $! > child; wait"]
    await sandbox.ask(WorkerExec(exec="exc-1", command=command, wait_seconds=0))
    child = int(
        await eventually(lambda: (sandbox.work / "child").exists() and (sandbox.work / "child").read_text(), "")
    )
    assert (await sandbox.exec("/bin/sh", "-c", "touch enough")).exit_code == 0
    await sandbox.event("waiting")
    assert (await sandbox.ask(WorkerExecStatus(exec="exc-1", wait_seconds=0))).state == "running"
    assert alive(child)
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert not alive(child)
    kinds = [event.type.removeprefix("agent.") for event in await sandbox.events()]
    assert kinds[-2:] == ["exec_completed", "shutdown"]
    assert kinds.count("exec_started") == kinds.count("exec_completed") == 2


@pytest.mark.own_broker
@pytest.mark.faults
async def test_command_continues_while_the_broker_is_down(bare: Any, herd: Any, eventually: Any) -> None:
    """After the broker's restart, no output is missing, and the command has run only once."""
    command = ["/bin/sh", "-c", "echo x >> runs; echo one; while ! test -e go; do sleep 0.05; done; echo two"]
    await bare.ask(WorkerExec(exec="exc-1", command=command))

    async def begun() -> bool:
        return written(await bare.ask(WorkerExecStatus(exec="exc-1"))) == b"one\n"

    await eventually(begun, "what it says at first")
    await herd.kill()
    (bare.work / "go").touch()
    await herd.restart()
    assert written(await bare.completed("exc-1")) == b"one\ntwo\n"
    assert (bare.work / "runs").read_text() == "x\n"
    assert (await bare.event("exec_completed")).data.exit_code == 0


@pytest.mark.faults
async def test_command_of_a_killed_worker_is_ended_and_failed(bare: Any, eventually: Any) -> None:
    """The recovery leaves no process and no command without an end."""
    await bare.ask(WorkerExec(exec="exc-1", command=["/bin/sh", "-c", "sleep 600 & echo $! > child; wait"]))
    child = int(await eventually(lambda: (bare.work / "child").exists() and (bare.work / "child").read_text(), "it"))
    await bare.event("exec_started")
    bare.signal(signal.SIGKILL)
    await bare.ended()
    assert await bare.run("--recover", SANDHERD_LOST_SIGNAL="9") == 0
    assert not alive(child)
    kinds = [event.type.removeprefix("agent.") for event in await bare.events()]
    assert kinds[-2:] == ["exec_completed", "shutdown"]
    assert (await bare.event("exec_completed")).data.state == "failed"
