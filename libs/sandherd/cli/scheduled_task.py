"""Reads the task of a schedule: from a file with one task, or from the options of `sandherd run`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import RESERVED_PREFIX
from sandherd.contracts.specs import TaskSpec

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Suffixes of task files."""
_RUN_COMMAND: Final = "sandherd run"


@dataclass
class RunCapture:
    """Receives the task of `sandherd run`, which is not submitted if the context of the command has this object."""

    task: TaskSpec | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    unsupported_option: str = ""
    """The first given option that the task of a schedule can't have."""

    def store(self, task: TaskSpec, limits: Mapping[str, float], **unsupported: object) -> int:
        """Store the task of `run`. `unsupported` has the values of options that a schedule can't have. Returns 0."""
        self.task, self.limits = task, limits
        self.unsupported_option = next((f"--{option}" for option, value in unsupported.items() if value), "")
        return 0


@dataclass(frozen=True)
class ScheduledTask:
    """A task, and the limits that options set. `spec` adds the other limits from the task's profile."""

    task: TaskSpec
    limits: Mapping[str, float]
    source: str = ""
    """The file that has the task, and the name of the task in it; empty if it is from options."""

    async def spec(self, herd: "Herd") -> TaskSpec:
        """The complete spec. Raises `HerdError` if the herd would refuse it."""
        from sandherd.cli.sandbox_creation import with_limits
        from sandherd.client.tasks.named_checks import check_named

        spec = await with_limits(herd, self.task, self.limits)
        await (check_named(herd.check, spec, self.source) if self.source else herd.check(spec))
        return spec


def scheduled_task(source: Sequence[str]) -> ScheduledTask:
    """The task of a file if `source` is one file; else the task that `sandherd run` would submit with these arguments.

    One argument with a suffix of `SUFFIXES` is the name of a file, even if the file does not exist.

    Raises `HerdError`, and typer's errors for wrong usage.
    """
    if len(source) == 1 and (source[0].endswith(SUFFIXES) or _is_file(source[0])):
        return _task_from_file(Path(source[0]))
    return _task_from_options(source)


def _is_file(text: str) -> bool:
    return os.path.isfile(text)  # noqa: PTH113  # `Path.is_file` raises an error for a text that is too long for a file name


def _task_from_file(path: Path) -> ScheduledTask:
    from sandherd.client.tasks import batch

    tasks = batch.read(path)
    if len(tasks) > 1:
        raise _invalid_task(
            f"{path}: it has {len(tasks)} tasks", "tasks", "a schedule starts one: write one file for each"
        )
    if tasks[0].earlier is not None:
        raise _invalid_task(f"{path}: a session belongs to one task", "resume", "remove `resume`")
    if tasks[0].repository is not None:
        raise _invalid_task(f"{path}: a schedule can't upload a local repository", "repository.path", "name its `url`")
    spec = tasks[0].spec
    labels = {key: value for key, value in spec.labels.items() if not key.startswith(RESERVED_PREFIX)}
    return ScheduledTask(spec.model_copy(update={"labels": labels}), {}, f"{path}: {tasks[0].label}")


def _task_from_options(arguments: Sequence[str]) -> ScheduledTask:
    from sandherd.cli.app import build

    capture = RunCapture()
    command = typer.main.get_command(build(["run"], complete=False)).commands["run"]  # type: ignore[attr-defined]  # a group
    with command.make_context(_RUN_COMMAND, list(arguments), obj=capture) as context:
        command.invoke(context)
    if capture.unsupported_option:
        raise _invalid_task(
            f"a schedule's task can't have {capture.unsupported_option}",
            "schedule.task",
            f"omit {capture.unsupported_option}",
        )
    assert capture.task is not None
    return ScheduledTask(capture.task, capture.limits)


def _invalid_task(message: str, field_: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field_, remedy=remedy)
