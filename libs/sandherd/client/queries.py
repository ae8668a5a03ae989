"""Queries of tasks, sandboxes and dead letters: from the spawner (live state), or from event-ingest (history).

The live state has precedence. The history is used if the spawner does not know the item, or is unavailable.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel

from sandherd.client.errors import NAME_REMEDY, HerdError, ServiceUnavailableError, refused_task_error, validated
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
"""The timeout, in seconds, of requests for optional parts of a reply."""
_MAX_PAST_SANDBOXES: Final = 1000
"""Maximum number of sandboxes that are read from the history to complete a page of live sandboxes, newest first."""
_HISTORY_FIELDS: Final = ("events", "last_event_at", "last_heartbeat_at")
"""The fields of a sandbox that only the history has."""
_FALLBACK_CODES: Final = frozenset({Code.NOT_FOUND, Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})


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
        view: TaskView = await _live_or_past(
            send, ListLiveTasks(task=name, limit=1), lambda: requests.ListPastTasks(task=name, limit=1), name
        )
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        raise await _rejection(send, name) or error from None
    return view


async def _rejection(send: SendRequest, name: str) -> HerdError | None:
    """The error of a task whose submission was rejected; None if it was not rejected, or without the history."""
    from sandherd.client.events import decoder  # only needed for an unknown task
    from sandherd.contracts.events.task import TaskRejected

    request = requests.ListEvents(entity=name, types=[TaskRejected.type], newest_first=True, limit=1)
    try:
        reply = await send(request, timeout=HISTORY_SECONDS)
    except HerdError:
        return None
    if not reply.events:
        return None
    problem = refused_task_error(decoder.from_history(reply.events[0])).problem
    return HerdError(problem.model_copy(update={"code": Code.NOT_FOUND}))


async def sandbox(send: SendRequest, name: str) -> SandboxView:
    """One sandbox. Raises `HerdError` (`not_found`)."""
    live = ListLiveSandboxes(sandbox=name, limit=1)
    view: SandboxView = await _live_or_past(send, live, lambda: requests.ListPastSandboxes(sandbox=name, limit=1), name)
    return view


async def sandbox_with_history(send: SendRequest, name: str) -> SandboxView:
    """One sandbox, with the fields that only the history has, if it replies. Raises `HerdError` (`not_found`)."""
    view = await sandbox(send, name)
    try:
        past = _items(await send(requests.ListPastSandboxes(sandbox=name, limit=1), timeout=HISTORY_SECONDS))
    except HerdError:
        return view
    return _add_history(view, past[0] if past else None)


async def tasks(send: SendRequest, *, past: bool, **fields: Any) -> ListPage[TaskView]:
    """A page of tasks."""
    return await _list_page(
        send, validated(ListLiveTasks, **fields), lambda: validated(requests.ListPastTasks, **fields), past=past
    )


async def sandboxes(send: SendRequest, *, past: bool, **fields: Any) -> ListPage[SandboxView]:
    """A page of sandboxes, each with the fields that only the history has, if it replies."""
    page: ListPage[SandboxView] = await _list_page(
        send, validated(ListLiveSandboxes, **fields), lambda: validated(requests.ListPastSandboxes, **fields), past=past
    )
    if page.origin == "history" or not page.items:
        return page
    return replace(page, items=await _with_history(send, page.items))


async def _with_history(send: SendRequest, views: list[SandboxView]) -> list[SandboxView]:
    oldest = min(view.requested_at for view in views)
    request = validated(requests.ListPastSandboxes, since=oldest, limit=_MAX_PAST_SANDBOXES)
    try:
        past = {(view.project, view.sandbox): view for view in _items(await send(request, timeout=HISTORY_SECONDS))}
    except HerdError:
        return views
    return [_add_history(view, past.get((view.project, view.sandbox))) for view in views]


def _add_history(view: SandboxView, past: SandboxView | None) -> SandboxView:
    """A live view, with the fields that only the history has."""
    if past is None:
        return view
    return view.model_copy(update={field: getattr(past, field) for field in _HISTORY_FIELDS})


async def entity_status(send: SendRequest, target: "Target") -> "EntityStatus":
    """The state of a task or a sandbox. Raises `HerdError` (`not_found`)."""
    from sandherd.client.events.protocols import EntityStatus

    if target.kind == "sandbox":
        return EntityStatus((await sandbox(send, target.entity)).state)
    view = await task(send, target.entity)
    return EntityStatus(view.state, view.sandbox)


async def pages(send: SendRequest, request: Request[Any]) -> AsyncIterator[Any]:
    """All pages of the reply to a request, in order."""
    while True:
        page = await send(request)
        yield page
        if page.next_cursor is None or page.next_cursor == getattr(request, "cursor", None):
            return
        request = request.model_copy(update={"cursor": page.next_cursor})


async def dead_letter(send: SendRequest, number: int) -> "requests.DeadLetter":
    """One dead letter, with its payload. Raises `HerdError` (`not_found`)."""
    reply: requests.DeadLetters = await send(validated(requests.ListDeadLetters, number=number))
    if not reply.letters:
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="list the dead letters"
        )
    return reply.letters[0]


async def requeue(
    send: SendRequest, number: int, *, by: str | None = None, timeout: float = 30
) -> "requests.RequeueResult":
    """Request that the service of a dead letter handles it again. `by` is the user who requests it, for its log."""
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
    reply: requests.RequeueResult = await send(validated(request, number=number, requeued_by=by), timeout=timeout)
    return reply


async def _live_or_past(send: SendRequest, live: Request[Any], past: Callable[[], Request[Any]], name: str) -> Any:
    """The item in the live state, else in the history.

    Raises `HerdError` if there is none: the error of an unavailable service if there is one, else `not_found`.
    """
    kind = "task" if isinstance(live, ListLiveTasks) else "sandbox"
    unknown = HerdError.of(Code.NOT_FOUND, f"there is no {kind} {name}", field=kind, remedy=NAME_REMEDY)
    failures: list[HerdError] = []
    for is_past in (False, True):
        try:
            items = _items(await send(past() if is_past else live))
        except HerdError as error:
            if error.problem.code not in _FALLBACK_CODES:
                raise
            failures += [error] if error.problem.code is not Code.NOT_FOUND else []
        else:
            if items:
                return items[0]
    raise failures[0] if failures else unknown


async def _list_page(
    send: SendRequest, live: Request[Any], from_history: Callable[[], Request[Any]], *, past: bool
) -> ListPage[Any]:
    if not past:
        try:
            reply = await send(live)
            return ListPage(_items(reply), reply.next_cursor, "live")
        except ServiceUnavailableError as unavailable:
            return await _history_page(send, from_history(), unavailable)
    reply = await send(from_history())
    return ListPage(_items(reply), reply.next_cursor, "history")


async def _history_page(
    send: SendRequest, from_history: Request[Any], unavailable: ServiceUnavailableError
) -> ListPage[Any]:
    """The page from the history, as the spawner is unavailable. Raises `unavailable` if the history fails, too."""
    try:
        reply = await send(from_history)
    except HerdError:
        raise unavailable from None
    return ListPage(_items(reply), reply.next_cursor, "history")


def _items(reply: Any) -> list[Any]:
    return list(reply.tasks if hasattr(reply, "tasks") else reply.sandboxes)
