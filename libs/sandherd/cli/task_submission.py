"""Submits a task and shows its events until it ends; shows whether a message was delivered."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sandherd.cli.name_prefixes import full_name
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import shortened
from sandherd.cli.render.history import report_gaps
from sandherd.cli.render.live_view import TaskScreen
from sandherd.cli.sandbox_creation import with_limits
from sandherd.cli.stderr import print_error
from sandherd.cli.task_dependencies import require_dependencies
from sandherd.cli.wait_notices import WaitNotices
from sandherd.client.commands import is_in_use
from sandherd.client.errors import NAME_REMEDY, HerdError, refused_task_error
from sandherd.client.events.sequencer import Event
from sandherd.client.events.target import TASK_REFUSED
from sandherd.client.herd import Herd, new_task
from sandherd.client.terminal_text import write_text
from sandherd.client.work_source import WorkSource
from sandherd.concurrency import run_until_first
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.task import TaskCompleted
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import MessageState

if TYPE_CHECKING:
    from sandherd.client.messages import MessageOutcome
    from sandherd.client.repositories.local import LocalRepository
    from sandherd.client.repositories.source import RepositorySource
    from sandherd.client.tasks.resume import ResumeSource

_COMPLETED_TYPE: Final = TaskCompleted.type
_NAME_IN_USE: Final = "choose another --name, or leave it out; `sandherd events {0}` shows what that task does"


async def run(
    herd: Herd,
    task: TaskSpec,
    output: Format,
    *,
    follow: bool,
    limits: Mapping[str, float],
    name: str | None = None,
    resume: "ResumeSource | None" = None,
    uploads: "WorkSource | LocalRepository | RepositorySource | None" = None,
) -> int:
    """Upload `uploads`, submit a task and show its events. Returns 0 if the task completes, else 1.

    If the `name` is in use by the same task, that task is shown and not run again. If it is in use by another task,
    this raises `HerdError` (`conflict`). A task with files to upload always counts as another task.
    """
    is_resubmission = name is not None and await is_in_use(herd.task(name))
    if is_resubmission and uploads and _has_files(uploads):
        raise _name_in_use(name or "")
    name = name or new_task()
    task = await with_limits(herd, await _with_full_names(herd, task, resume), limits)
    await herd.check(task)
    if isinstance(uploads, WorkSource):
        task = task.model_copy(update={"work": await _upload_files(herd, name, uploads)} if uploads else {})
    elif uploads is not None:
        task = task.model_copy(update={"repository": await _upload_repository(herd, name, uploads)})
    if is_resubmission:
        await _submit_again(herd, name, task)
    if follow:
        return await _follow_until_ended(herd, name, task, output, is_resubmission=is_resubmission)
    if not is_resubmission:
        await herd.submit(task, task=name)
    if output.is_json:
        console.print_document(output, {"task": name})
    else:
        write_text(name)
    return 0


def _has_files(uploads: "WorkSource | LocalRepository | RepositorySource") -> bool:
    """Whether `uploads` has files to upload. The project's default repository does not."""
    return isinstance(uploads, WorkSource) or not getattr(uploads, "is_default", False)


async def _with_full_names(herd: Herd, task: TaskSpec, resume: "ResumeSource | None") -> TaskSpec:
    """The task with the full names of its dependencies, and of the task that it resumes. Raises `HerdError`."""
    if task.depends_on:
        names = [await full_name(herd, dependency, "task") for dependency in task.depends_on]
        await require_dependencies(herd, names)
        task = task.model_copy(update={"depends_on": tuple(names)})
    if resume is None:
        return task
    from sandherd.client.tasks.resume import resuming_spec  # only needed to resume

    resume = resume.model_copy(update={"task": await full_name(herd, resume.task, "task")})
    return await resuming_spec(herd.connection.request, task, resume)


async def _submit_again(herd: Herd, name: str, task: TaskSpec) -> None:
    """Submit a task under a name in use. Raises `HerdError` (`conflict`) if that is another task."""
    from sandherd.client.tasks.resubmission import Resubmission  # only needed for a name in use

    async with Resubmission(herd.connection, name) as resubmission:
        await herd.submit(task, task=name)
        await resubmission.check_same(_NAME_IN_USE.format(name))
    print_error(f"{name} was submitted before: it is the same task, and is not run again")


def _name_in_use(name: str) -> HerdError:
    message = f"there is a task {name}, which has other files"
    return HerdError.of(Code.CONFLICT, message, field="task", remedy=_NAME_IN_USE.format(name))


async def _upload_repository(herd: Herd, name: str, repository: "LocalRepository | RepositorySource") -> Repository:
    """Upload the repository of a task if it is local. Returns the field `repository` of the task's spec."""
    from sandherd.client.repositories.local import LocalRepository  # only needed with a repository

    if not isinstance(repository, LocalRepository):
        return await herd.upload_repository(name, repository)
    from sandherd.cli.local_repositories import upload

    return await upload(herd, name, repository)


async def _upload_files(herd: Herd, name: str, work: WorkSource) -> ArtifactRef:
    from sandherd.cli.file_copy import ProgressBar, warn_about_links  # only needed with files

    links: list[tuple[str, str]] = []
    with ProgressBar(str(work.folder or "files")) as bar:
        reference = await herd.upload_work(name, work, on_progress=bar.move, left_out=lambda *link: links.append(link))
    warn_about_links(links)
    return reference


async def _follow_until_ended(herd: Herd, name: str, task: TaskSpec, output: Format, *, is_resubmission: bool) -> int:
    paint, notices = Paint.for_screen(), WaitNotices(herd, name)
    async with herd.follow(task=name, fresh=not is_resubmission) as follower, TaskScreen(herd, output, paint) as screen:
        if not is_resubmission:
            await herd.submit(task, task=name)
        if not output.is_json:
            heading = f"{paint(name, 'bold')}  {shortened(task.text, 80)}"
            write_text(heading if output.is_text else name, flush=True)
        try:
            await run_until_first(screen.follow(follower, notices.record_event), notices.run())
        except asyncio.CancelledError:
            print_error(f"{name} keeps running; stop it with `sandherd tasks cancel {name}`")
            raise
    report_gaps(follower)
    status = _exit_status(name, screen.last, sorted(follower.sandboxes))
    if task.repository is not None:
        from sandherd.cli import branch_output  # only needed with a repository

        await branch_output.show_saved_branch(herd, name, output)
    return status


def _exit_status(name: str, last_event: Event | None, sandboxes: Sequence[str]) -> int:
    """The exit status for the task's last event. Raises `HerdError` if the task was refused."""
    if last_event is not None and last_event.type == _COMPLETED_TYPE:
        return 0
    if last_event is not None and last_event.type in TASK_REFUSED:
        raise refused_task_error(last_event)
    where = f"sandherd trajectory {sandboxes[-1]}" if sandboxes else f"sandherd events {name}"
    state = last_event.type.removeprefix("task.") if last_event is not None else "ended with unknown outcome"
    print_error(f"{name} {state}; see `{where}`")
    return 1


def show_delivery(delivery: "MessageOutcome", output: Format) -> int:
    """Show the outcome of a message. Returns 0 if the agent has it, else 1."""
    if output.is_json:
        console.print_document(
            output,
            {
                "message": delivery.message,
                "sandbox": delivery.sandbox,
                "state": delivery.state,
                "delivery_ms": delivery.delivery_ms,
                "code": delivery.code,
                "reason": delivery.reason,
            },
        )
    elif delivery.state is MessageState.ACKNOWLEDGED:
        took = "" if delivery.delivery_ms is None else f" in {delivery.delivery_ms:.1f} ms"
        write_text(f"{delivery.message}: delivered{took}, and the agent has it")
    if delivery.state is MessageState.ACKNOWLEDGED:
        return 0
    reason = delivery.reason or "not acknowledged in time"
    remedy = NAME_REMEDY if delivery.code == Code.NOT_FOUND else f"see `sandherd sandboxes get {delivery.sandbox}`"
    print_error(f"{delivery.message} is {delivery.state}: {reason}; {remedy}")
    return 1
