"""Making the harness that a task asks for, and what its agent is given."""

from pathlib import Path

from pydantic import ValidationError

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import ContractError
from sandherd_worker import oom
from sandherd_worker.assignment import Assignment
from sandherd_worker.harnesses.base import Harness, Voice
from sandherd_worker.processes import PLACE_VARIABLE, SANDBOX_VARIABLE, Reaper
from sandherd_worker.redaction import Redactor


def make_harness(spec: TaskSpec, who: Assignment, voice: Voice, redactor: Redactor, reaper: Reaper) -> Harness:
    """The harness for this task."""
    from sandherd_worker.harnesses.command import CommandHarness
    from sandherd_worker.harnesses.program import Program

    program = Program(argv=spec.harness.argv, environment=environment(spec, who), work_dir=who.work_dir, said=spec.text)
    return CommandHarness(program, voice, redactor, reaper, lambda: oom.kills(who.cgroup))


def environment(spec: TaskSpec, who: Assignment) -> dict[str, str]:
    """The agent's whole environment: a few plain variables, the task's own, and who it is. No credential of ours."""
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(who.work_dir), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    ours = {"SANDHERD_TASK": spec.text, "SANDHERD_TASK_ID": who.task, SANDBOX_VARIABLE: who.sandbox, PLACE_VARIABLE: who.place}
    return {**plain, **who.inherited, **spec.env, **ours}


def secrets(spec: TaskSpec) -> list[str]:
    """What must not be said."""
    return [spec.env[name] for name in spec.secret_env]


def read_task(path: Path) -> TaskSpec:
    """The task in this file. Raises `OSError`, or `ContractError` naming the field that is wrong."""
    try:
        return TaskSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def put_files(spec: TaskSpec, work_dir: Path) -> None:
    """Put the task's files into the work tree. Raises `OSError`."""
    for name, text in spec.files.items():
        path = work_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
