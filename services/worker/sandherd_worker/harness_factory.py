"""Creates the harness of a task, and the environment and files of its agent."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import ValidationError

from sandherd.contracts.commands import SandboxSpec, TaskSpec
from sandherd.contracts.errors import ContractError
from sandherd.contracts.harnesses import HERD_SERVER, MAX_ARGUMENT_BYTES, CommandHarness, McpToolOptions
from sandherd_worker import oom
from sandherd_worker.assignment import Assignment
from sandherd_worker.harnesses.base import EventSink, Harness
from sandherd_worker.processes import PLACE_VARIABLE, SANDBOX_VARIABLE
from sandherd_worker.worker_resources import WorkerResources

Turned = Callable[[int, bool], Awaitable[None]]
"""Called at each turn's start (True) and end (False), by an agent that takes follow-ups."""


def make_once(spec: TaskSpec, resources: WorkerResources, sink: EventSink, turned: Turned) -> Harness:
    """The harness for a single run of the agent; ignores `spec.continuous`.

    Raises `NoToolchainError`, and `OSError` if its files can't be written.
    """
    if isinstance(spec.harness, CommandHarness):
        return _command(spec, spec.harness, resources, sink)
    return _driver(spec, resources, sink, turned)


def _command(spec: TaskSpec, harness: CommandHarness, resources: WorkerResources, sink: EventSink) -> Harness:
    from sandherd_worker.harnesses import command
    from sandherd_worker.harnesses.program import Program

    assignment = resources.assignment
    program = Program(
        argv=_argv(harness, spec.text, assignment.state_dir),
        environment=environment(spec, assignment) | _task_file(harness, spec.text, assignment.state_dir),
        work_dir=assignment.work_dir,
        prompt=spec.text,
        stdin=spec.text if harness.task_as == "stdin" else None,
    )
    return command.CommandHarness(
        program,
        sink,
        resources.emitter.redactor,
        resources.reaper,
        lambda: oom.kills(assignment.cgroup),
        below=resources.ownership.agents,
    )


def _argv(harness: CommandHarness, text: str, folder: Path) -> list[str]:
    """The program with its arguments; a script is first written to a file. Raises `OSError`."""
    arguments = [*harness.argv, *([text] if harness.task_as == "argument" else [])]
    if harness.script is None:
        return arguments
    script = folder / "script"
    script.write_text(harness.script)
    script.chmod(0o700)
    return [*(() if harness.script.startswith("#!") else ("/bin/sh",)), str(script), *arguments]


def _task_file(harness: CommandHarness, text: str, folder: Path) -> dict[str, str]:
    """The variable with the path of the task file, if the task requires a file or is too long for a variable.

    Raises `OSError`.
    """
    if harness.task_as != "file" and _fits_variable(text):
        return {}
    (folder / "task.txt").write_text(text)
    return {"SANDHERD_TASK_PATH": str(folder / "task.txt")}


def _driver(spec: TaskSpec, resources: WorkerResources, sink: EventSink, turned: Turned) -> Harness:
    from sandherd_worker.harnesses.driver import DriverHarness
    from sandherd_worker.harnesses.driver_launch import driver_launch
    from sandherd_worker.harnesses.driver_task import DriverTask, HarnessContext
    from sandherd_worker.harnesses.program import Program
    from sandherd_worker.herd.mcp_config import McpConfig, added
    from sandherd_worker.herd.tools import HerdTools
    from sandherd_worker.session_store import DRIVER, SessionStore
    from sandherd_worker.task_resume import resume_of

    assignment = resources.assignment
    launch = driver_launch(spec.harness, assignment)
    options = launch.options
    tools = options if isinstance(options, McpToolOptions) else McpToolOptions(herd_tools=False)
    state = assignment.state_dir / DRIVER
    state.mkdir(exist_ok=True)
    herd = McpConfig(HerdTools(assignment, resources.line), state) if tools.herd_tools else None
    own = {HERD_SERVER: herd.server(launch.python, launch.packages)} if herd else {}
    context = HarnessContext(
        sink=sink,
        redactor=resources.emitter.redactor,
        reaper=resources.reaper,
        memory_kills=lambda: oom.kills(assignment.cgroup),
        keep=SessionStore(assignment, resources.emitter, resources.spool).store,
        turned=turned,
        below=resources.ownership.agents,
        herd=herd,
    )
    servers = {"mcp_servers": {**added(tools, spec.env), **own}} if tools is options else {}
    task = DriverTask(
        text=spec.text,
        work_dir=assignment.work_dir,
        state_dir=state,
        harness={**options.model_dump(mode="json"), **servers},
        approvals=launch.kind.approvals(options),
        resume=resume_of(assignment, spec.resume),
    )
    program = Program(
        argv=launch.argv,
        environment={**environment(spec, assignment), "PYTHONPATH": launch.search_path},
        work_dir=assignment.work_dir,
        prompt=spec.text,
    )
    return DriverHarness(program, task, context)


def environment(spec: SandboxSpec, assignment: Assignment) -> dict[str, str]:
    """The agent's whole environment: defaults, the spec's variables, the sandbox's identity; no worker credential."""
    plain = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(assignment.work_dir),
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
    }
    own = {SANDBOX_VARIABLE: assignment.sandbox, PLACE_VARIABLE: assignment.place}
    # Spans that an agent exports itself join the trace of its task.
    trace = {"TRACEPARENT": assignment.traceparent} if assignment.traceparent else {}
    return {**plain, **assignment.inherited, **trace, **spec.env, **own, **_task_variables(spec, assignment)}


def _task_variables(spec: SandboxSpec, assignment: Assignment) -> dict[str, str]:
    if assignment.task is None or not isinstance(spec, TaskSpec):
        return {}
    found = {"SANDHERD_TASK_ID": assignment.task, "SANDHERD_ATTEMPT": str(assignment.attempt)}
    if _fits_variable(spec.text):
        found["SANDHERD_TASK"] = spec.text
    if spec.repository is not None and spec.repository.checkout is not None:
        found["BRANCH_NAME"] = spec.repository.checkout.branch
    if assignment.previous_file and assignment.previous_dir:
        found["SANDHERD_PREVIOUS_DIR"] = str(assignment.previous_dir)
    return found


def _fits_variable(text: str) -> bool:
    """Whether the text is short enough for an environment variable (a limit of the kernel)."""
    return len(text.encode("utf-8", "replace")) <= MAX_ARGUMENT_BYTES


def secrets(spec: SandboxSpec) -> list[str]:
    """The values that must not be published."""
    return [spec.env[name] for name in spec.secret_env]


def read_spec(assignment: Assignment) -> SandboxSpec:
    """The spec of this sandbox: a `TaskSpec` if there is a task.

    Raises `OSError`, or `ContractError` naming the field that is wrong.
    """
    model = TaskSpec if assignment.task else SandboxSpec
    try:
        return model.model_validate_json(assignment.task_file.read_bytes())
    except ValidationError as error:
        raise ContractError.from_validation(error) from None
