"""What a task waits for: the spawner's reason while it is pending, its sandbox, or a user's answer to an approval."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sandherd.client import queries
from sandherd.client.errors import HerdError
from sandherd.client.queries import SendRequest
from sandherd.contracts.requests import ListLiveTasks, SandboxView, TaskView
from sandherd.contracts.states import ApprovalState, SandboxState, TaskState

if TYPE_CHECKING:
    from sandherd.contracts.requests import ApprovalView

APPROVAL_SECONDS: Final = 2.0
"""The timeout of a request for approvals."""
_MAX_APPROVALS: Final = 1000
_MAX_TOOL_LENGTH: Final = 40


async def pending_approvals(send: SendRequest, sandbox: str | None = None) -> "list[ApprovalView]":
    """The approvals that no user has answered yet; an empty list if the history does not reply."""
    from sandherd.contracts.requests import ListApprovals  # most lists have no running task

    request = ListApprovals(sandbox=sandbox, state=ApprovalState.PENDING, limit=_MAX_APPROVALS)
    try:
        return list((await send(request, timeout=APPROVAL_SECONDS)).approvals)
    except HerdError:
        return []


async def with_approvals(send: SendRequest, views: Sequence[TaskView]) -> list[TaskView]:
    """The tasks. For a running task with an unanswered approval, `waits_for` names the approval."""
    running = [view for view in views if view.state is TaskState.RUNNING and view.sandbox is not None]
    if not running:
        return list(views)
    known: dict[tuple[str, str], list[ApprovalView]] = {}
    for approval in await pending_approvals(send, running[0].sandbox if len(views) == 1 else None):
        known.setdefault((approval.project, approval.sandbox), []).append(approval)
    return [_with_reason(view, known.get((view.project, view.sandbox or ""), [])) for view in views]


def _with_reason(view: TaskView, approvals: "Sequence[ApprovalView]") -> TaskView:
    if view.state is not TaskState.RUNNING or not approvals:
        return view
    more = f", and {len(approvals) - 1} more" if approvals[1:] else ""
    tool = approvals[0].tool[:_MAX_TOOL_LENGTH]
    return view.model_copy(update={"waits_for": f"approval {approvals[0].approval_id} of {tool}{more}"})


async def progress_problem(send: SendRequest, task: str) -> str | None:
    """Why a task makes no progress now, as text with a remedy; None if its agent works, or the task has ended.

    Raises `HerdError`, as `ServiceUnavailableError` if the spawner does not respond.
    """
    views = (await send(ListLiveTasks(task=task, limit=1))).tasks
    if not views:
        return "the spawner has not handled its submission yet; see `sandherd doctor`"
    view: TaskView = views[0]
    if view.state is TaskState.PENDING:
        return view.waits_for
    if view.state not in {TaskState.ASSIGNED, TaskState.RUNNING} or view.sandbox is None:
        return None
    return _sandbox_problem(await queries.sandbox(send, view.sandbox)) or await _approval_problem(send, view.sandbox)


def _sandbox_problem(sandbox: SandboxView) -> str | None:
    if sandbox.state in {SandboxState.REQUESTED, SandboxState.SPAWNING}:
        return f"{sandbox.sandbox} is starting; see `sandherd events {sandbox.sandbox}`"
    if sandbox.state is SandboxState.PAUSED:
        return f"{sandbox.sandbox} is paused; continue with `sandherd sandboxes resume {sandbox.sandbox}`"
    return None


async def _approval_problem(send: SendRequest, sandbox: str) -> str | None:
    approvals = await pending_approvals(send, sandbox)
    if not approvals:
        return None
    first = approvals[0]
    command = f"sandherd approvals grant {sandbox} {first.approval_id}"
    return f"approval of {first.tool[:_MAX_TOOL_LENGTH]}: `{command}`, or `deny`; see `sandherd approvals list`"
