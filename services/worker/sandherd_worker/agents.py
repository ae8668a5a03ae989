"""Making the harness that a task asks for, and what its agent is given."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import ValidationError

from sandherd.contracts.commands import SandboxSpec, TaskSpec
from sandherd.contracts.errors import ContractError
from sandherd.contracts.harnesses import HERD_SERVER, LONGEST_WORD, CommandHarness, DrivenHarness
from sandherd_worker import oom
from sandherd_worker.assignment import Assignment
from sandherd_worker.harnesses.base import Harness, Voice
from sandherd_worker.parts import Parts
from sandherd_worker.processes import PLACE_VARIABLE, SANDBOX_VARIABLE

Turned = Callable[[int, bool], Awaitable[None]]
"""Told of each turn's beginning (True) and end, by an agent that takes follow-ups."""


def make_harness(spec: TaskSpec, parts: Parts, voice: Voice, turned: Turned) -> Harness:
    """The harness for this task. Raises `NoToolchainError`, and `OSError` if what it needs can't be laid out."""
    if spec.continuous is None:
        return make_once(spec, parts, voice, turned)
    from sandherd_worker.continuous.making import make_rounds

    return make_rounds(spec, spec.continuous, parts, voice, turned)


def make_once(spec: TaskSpec, parts: Parts, voice: Voice, turned: Turned) -> Harness:
    """The same for an agent that does its task once, whatever the spec says of that. Raises the same."""
    if isinstance(spec.harness, CommandHarness):
        return _command(spec, spec.harness, parts, voice)
    return _driver(spec, spec.harness, parts, voice, turned)


def _command(spec: TaskSpec, asked: CommandHarness, parts: Parts, voice: Voice) -> Harness:
    from sandherd_worker.harnesses import command
    from sandherd_worker.harnesses.program import Program

    who = parts.who
    program = Program(
        argv=_argv(asked, spec.text, who.state_dir),
        environment=environment(spec, who) | _task_file(asked, spec.text, who.state_dir),
        work_dir=who.work_dir,
        said=spec.text,
        stdin=spec.text if asked.task_as == "stdin" else None,
    )
    return command.CommandHarness(
        program, voice, parts.emitter.redactor, parts.reaper, lambda: oom.kills(who.cgroup), below=parts.families.agents
    )


def _argv(asked: CommandHarness, text: str, folder: Path) -> list[str]:
    """The program with its arguments; a script is laid out first. Raises `OSError`."""
    words = [*asked.argv, *([text] if asked.task_as == "argument" else [])]
    if asked.script is None:
        return words
    script = folder / "script"
    script.write_text(asked.script)
    script.chmod(0o700)
    return [*(() if asked.script.startswith("#!") else ("/bin/sh",)), str(script), *words]


def _task_file(asked: CommandHarness, text: str, folder: Path) -> dict[str, str]:
    """The variable that names the file with the task, if it is to be in one, or has to. Raises `OSError`."""
    if asked.task_as != "file" and _is_a_word(text):
        return {}
    (folder / "task.txt").write_text(text)
    return {"SANDHERD_TASK_PATH": str(folder / "task.txt")}


def _driver(spec: TaskSpec, asked: DrivenHarness, parts: Parts, voice: Voice, turned: Turned) -> Harness:
    from sandherd_worker.harnesses.driver import DriverHarness
    from sandherd_worker.harnesses.driver_task import Around, Task
    from sandherd_worker.harnesses.program import Program
    from sandherd_worker.herd.offering import Herd, added
    from sandherd_worker.herd.tools import HerdTools
    from sandherd_worker.resuming import resume_of
    from sandherd_worker.sessions import DRIVER, Sessions
    from sandherd_worker.toolchains import interpreter, lay_drivers

    who = parts.who
    python, drivers = interpreter(who, asked.kind), lay_drivers(who.state_dir / "drivers")
    found = {**environment(spec, who), "PYTHONPATH": str(drivers)}
    argv = [str(python), "-B", "-P", "-m", f"sandherd_drivers.{asked.kind}"]
    state = who.state_dir / DRIVER
    state.mkdir(exist_ok=True)
    herd = Herd(HerdTools(who, parts.line), state) if asked.herd_tools else None
    ours = {HERD_SERVER: herd.server(python, drivers)} if herd else {}
    around = Around(
        voice=voice,
        redactor=parts.emitter.redactor,
        reaper=parts.reaper,
        memory_kills=lambda: oom.kills(who.cgroup),
        keep=Sessions(who, parts.emitter, parts.spool).keep,
        turned=turned,
        below=parts.families.agents,
        herd=herd,
    )
    task = Task(
        text=spec.text,
        work_dir=who.work_dir,
        state_dir=state,
        harness={**asked.model_dump(mode="json"), "mcp_servers": {**added(asked, spec.env), **ours}},
        approvals=asked.approvals,
        resume=resume_of(who, spec.resume),
    )
    return DriverHarness(Program(argv=argv, environment=found, work_dir=who.work_dir, said=spec.text), task, around)


def environment(spec: SandboxSpec, who: Assignment) -> dict[str, str]:
    """The agent's whole environment: a few plain variables, the spec's own, and who it is. No credential of ours."""
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(who.work_dir), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    ours = {SANDBOX_VARIABLE: who.sandbox, PLACE_VARIABLE: who.place}
    # What an agent exports of itself goes on in the trace of its task.
    trace = {"TRACEPARENT": who.traceparent} if who.traceparent else {}
    return {**plain, **who.inherited, **trace, **spec.env, **ours, **_of_task(spec, who)}


def _of_task(spec: SandboxSpec, who: Assignment) -> dict[str, str]:
    if who.task is None or not isinstance(spec, TaskSpec):
        return {}
    found = {"SANDHERD_TASK_ID": who.task, "SANDHERD_ATTEMPT": str(who.attempt)}
    if _is_a_word(spec.text):
        found["SANDHERD_TASK"] = spec.text
    if who.previous_file and who.previous_dir:
        found["SANDHERD_PREVIOUS_DIR"] = str(who.previous_dir)
    return found


def _is_a_word(text: str) -> bool:
    """Whether the kernel takes it as a variable."""
    return len(text.encode("utf-8", "replace")) <= LONGEST_WORD


def secrets(spec: SandboxSpec) -> list[str]:
    """What must not be said."""
    return [spec.env[name] for name in spec.secret_env]


def read_spec(who: Assignment) -> SandboxSpec:
    """What this sandbox is for: a `TaskSpec` where there is a task.

    Raises `OSError`, or `ContractError` naming the field that is wrong.
    """
    model = TaskSpec if who.task else SandboxSpec
    try:
        return model.model_validate_json(who.task_file.read_bytes())
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def put_files(spec: SandboxSpec, work_dir: Path) -> None:
    """Put the spec's files into the work tree. Raises `OSError`."""
    for name, text in spec.files.items():
        path = work_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
