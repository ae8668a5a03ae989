"""Queries with a live and a past reply: from the spawner (live state), and from event-ingest (history).

The live reply has precedence. The history is used if the spawner does not know the item, or is unavailable.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel

from sandherd.client.errors import NAME_REMEDY, HerdError, ServiceUnavailableError, made, refused
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.live_state import ListLiveSandboxes, ListLiveTasks, SandboxView, TaskView

if TYPE_CHECKING:
    from sandherd.client.events.protocols import EntityStatus
    from sandherd.client.events.target import Target

ViewT = TypeVar("ViewT", bound=BaseModel)
Origin = Literal["live", "history"]

HISTORY_SECONDS: Final = 2.0
"""How long to wait for what a reply can do without."""
MAX_LISTED: Final = 1000
"""How many sandboxes of the history are read for a page of live ones: the newest ones since the oldest of the page."""
_FROM_HISTORY: Final = ("events", "last_event_at", "last_heartbeat_at")
_TRY_THE_OTHER: Final = frozenset({Code.NOT_FOUND, Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})


class SendRequest(Protocol):
    """Sends a request to a service."""

    def __call__(self, request: Request[Any], *, timeout: float = 5.0) -> Awaitable[Any]:
        """Return the reply. Raises `HerdError`."""


@dataclass(frozen=True)
class ListPage(Generic[ViewT]):
    """A page of tasks or sandboxes, and its origin."""

    items: list[ViewT]
    next_cursor: str | None
    origin: Origin


async def task(send: SendRequest, name: str) -> TaskView:
    """One task. Raises `HerdError` (`not_found`), with the reason if it was rejected."""
    try:
        found: TaskView = await _one(
            send, ListLiveTasks(task=name, limit=1), lambda: requests.ListPastTasks(task=name, limit=1), name
        )
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        raise await _rejection(send, name) or error from None
    return found


async def _rejection(send: SendRequest, name: str) -> HerdError | None:
    """Why there is no such task, if its submission was rejected; None otherwise, and without a history."""
    from sandherd.client.events import decoder  # only needed for an unknown task
    from sandherd.contracts.events.task import TaskRejected

    question = requests.ListEvents(entity=name, types=[TaskRejected.type], newest_first=True, limit=1)
    try:
        found = await send(question, timeout=HISTORY_SECONDS)
    except HerdError:
        return None
    if not found.events:
        return None
    problem = refused(decoder.from_history(found.events[0])).problem
    return HerdError(problem.model_copy(update={"code": Code.NOT_FOUND}))


async def sandbox(send: SendRequest, name: str) -> SandboxView:
    """One sandbox. Raises `HerdError` (`not_found`)."""
    live = ListLiveSandboxes(sandbox=name, limit=1)
    found: SandboxView = await _one(send, live, lambda: requests.ListPastSandboxes(sandbox=name, limit=1), name)
    return found


async def whole_sandbox(send: SendRequest, name: str) -> SandboxView:
    """One sandbox, with what only the history knows: its events. Raises `HerdError` (`not_found`)."""
    view = await sandbox(send, name)
    try:
        past = _items(await send(requests.ListPastSandboxes(sandbox=name, limit=1), timeout=HISTORY_SECONDS))
    except HerdError:
        return view
    return _merged(view, past[0] if past else None)


async def tasks(send: SendRequest, *, past: bool, **wanted: Any) -> ListPage[TaskView]:
    """A page of tasks."""
    return await _listing(
        send, made(ListLiveTasks, **wanted), lambda: made(requests.ListPastTasks, **wanted), past=past
    )


async def sandboxes(send: SendRequest, *, past: bool, **wanted: Any) -> ListPage[SandboxView]:
    """A page of sandboxes, with what only the history knows about each, if it replies."""
    page: ListPage[SandboxView] = await _listing(
        send, made(ListLiveSandboxes, **wanted), lambda: made(requests.ListPastSandboxes, **wanted), past=past
    )
    if page.origin == "history" or not page.items:
        return page
    return replace(page, items=await _with_history(send, page.items))


async def _with_history(send: SendRequest, views: list[SandboxView]) -> list[SandboxView]:
    oldest = min(view.requested_at for view in views)
    request = made(requests.ListPastSandboxes, since=oldest, limit=MAX_LISTED)
    try:
        past = {(view.project, view.sandbox): view for view in _items(await send(request, timeout=HISTORY_SECONDS))}
    except HerdError:
        return views
    return [_merged(view, past.get((view.project, view.sandbox))) for view in views]


def _merged(view: SandboxView, past: SandboxView | None) -> SandboxView:
    """A live view, with what only the history knows."""
    if past is None:
        return view
    return view.model_copy(update={field: getattr(past, field) for field in _FROM_HISTORY})


async def standing(send: SendRequest, target: "Target") -> "EntityStatus":
    """The state of a task or a sandbox. Raises `HerdError` (`not_found`)."""
    from sandherd.client.events.protocols import EntityStatus

    if target.kind == "sandbox":
        return EntityStatus((await sandbox(send, target.entity)).state)
    view = await task(send, target.entity)
    return EntityStatus(view.state, view.sandbox)


async def pages(send: SendRequest, request: Request[Any]) -> AsyncIterator[Any]:
    """Every page of a reply."""
    while True:
        page = await send(request)
        yield page
        if page.next_cursor is None or page.next_cursor == getattr(request, "cursor", None):
            return
        request = request.model_copy(update={"cursor": page.next_cursor})


async def dead_letter(send: SendRequest, number: int) -> "requests.DeadLetter":
    """One dead letter, with its payload. Raises `HerdError` (`not_found`)."""
    found: requests.DeadLetters = await send(made(requests.ListDeadLetters, number=number))
    if not found.letters:
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="list the dead letters"
        )
    return found.letters[0]


async def requeue(
    send: SendRequest, number: int, *, by: str | None = None, timeout: float = 30
) -> "requests.RequeueResult":
    """Make the service of a dead letter retry it; `by` is who has requested it, for the service's log."""
    from sandherd.contracts.requests.dead_letters import REQUEUES

    letter = await dead_letter(send, number)
    request = REQUEUES.get(letter.service)
    if request is None:
        raise HerdError.of(
            Code.REFUSED,
            f"dead letter {number} is from {letter.service}, which does not support requeue",
            field="number",
            remedy="remove its cause, and publish the message again",
        )
    answer: requests.RequeueResult = await send(made(request, number=number, requeued_by=by), timeout=timeout)
    return answer


async def _one(send: SendRequest, live: Request[Any], past: Callable[[], Request[Any]], name: str) -> Any:
    """The live reply if there is one, else the past one. Without either, an unavailable service is the error."""
    kind = "task" if isinstance(live, ListLiveTasks) else "sandbox"
    unknown = HerdError.of(Code.NOT_FOUND, f"there is no {kind} {name}", field=kind, remedy=NAME_REMEDY)
    failures: list[HerdError] = []
    for is_past in (False, True):
        try:
            items = _items(await send(past() if is_past else live))
        except HerdError as error:
            if error.problem.code not in _TRY_THE_OTHER:
                raise
            failures += [error] if error.problem.code is not Code.NOT_FOUND else []
        else:
            if items:
                return items[0]
    raise failures[0] if failures else unknown


async def _listing(
    send: SendRequest, live: Request[Any], beyond: Callable[[], Request[Any]], *, past: bool
) -> ListPage[Any]:
    if not past:
        try:
            answer = await send(live)
            return ListPage(_items(answer), answer.next_cursor, "live")
        except ServiceUnavailableError as unavailable:
            return await _history_instead(send, beyond(), unavailable)
    answer = await send(beyond())
    return ListPage(_items(answer), answer.next_cursor, "history")


async def _history_instead(
    send: SendRequest, beyond: Request[Any], unavailable: ServiceUnavailableError
) -> ListPage[Any]:
    """The past reply instead of the live one; if there is none either, raises the error of the live one."""
    try:
        answer = await send(beyond)
    except HerdError:
        raise unavailable from None
    return ListPage(_items(answer), answer.next_cursor, "history")


def _items(answer: Any) -> list[Any]:
    return list(answer.tasks if hasattr(answer, "tasks") else answer.sandboxes)
