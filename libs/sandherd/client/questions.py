"""Questions that have a live and a past answer: the spawner is asked what is so now, event-ingest what was so.

The live answer comes first. The past one is given where the spawner knows nothing, or is not there.
"""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel

from sandherd.client.errors import NAME_REMEDY, HerdError, ServiceAwayError, made
from sandherd.client.link import Standing
from sandherd.client.target import Target
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    AskDead,
    DeadLetter,
    DeadLetters,
    LiveSandboxes,
    LiveTasks,
    PastSandboxes,
    PastTasks,
    Request,
    Requeue,
    Requeued,
    RequeueEventIngest,
    RequeueMessageRelay,
    RequeueSpawner,
    SandboxView,
    TaskView,
)

ViewT = TypeVar("ViewT", bound=BaseModel)
Origin = Literal["live", "history"]

_TRY_THE_OTHER: Final = frozenset({Code.NOT_FOUND, Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})
REQUEUES: Final[dict[str, type[Requeue]]] = {
    request.answered_by: request for request in (RequeueSpawner, RequeueEventIngest, RequeueMessageRelay)
}


class Ask(Protocol):
    """How a service is asked."""

    def __call__(self, request: Request[Any], *, timeout: float = 5.0) -> Awaitable[Any]:
        """The answer. Raises `HerdError`."""


@dataclass(frozen=True)
class Listing(Generic[ViewT]):
    """A page of tasks or sandboxes, and who gave it."""

    items: list[ViewT]
    next_cursor: str | None
    origin: Origin


async def task(ask: Ask, name: str) -> TaskView:
    """One task. Raises `HerdError` (`not_found`)."""
    return await _one(ask, LiveTasks(task=name, limit=1), PastTasks(task=name, limit=1), TaskView, name)


async def sandbox(ask: Ask, name: str) -> SandboxView:
    """One sandbox. Raises `HerdError` (`not_found`)."""
    live, past = LiveSandboxes(sandbox=name, limit=1), PastSandboxes(sandbox=name, limit=1)
    return await _one(ask, live, past, SandboxView, name)


async def tasks(ask: Ask, *, past: bool, **wanted: Any) -> Listing[TaskView]:
    """A page of tasks."""
    return await _listing(ask, made(LiveTasks, **wanted), made(PastTasks, **wanted), past=past)


async def sandboxes(ask: Ask, *, past: bool, **wanted: Any) -> Listing[SandboxView]:
    """A page of sandboxes."""
    return await _listing(ask, made(LiveSandboxes, **wanted), made(PastSandboxes, **wanted), past=past)


async def standing(ask: Ask, target: Target) -> Standing:
    """How a task or a sandbox stands. Raises `HerdError` (`not_found`)."""
    if target.kind == "sandbox":
        return Standing((await sandbox(ask, target.entity)).state)
    view = await task(ask, target.entity)
    return Standing(view.state, view.sandbox)


async def pages(ask: Ask, request: Request[Any]) -> AsyncIterator[Any]:
    """Every page of an answer."""
    while True:
        page = await ask(request)
        yield page
        if page.next_cursor is None or page.next_cursor == getattr(request, "cursor", None):
            return
        request = request.model_copy(update={"cursor": page.next_cursor})


async def dead_letter(ask: Ask, number: int) -> DeadLetter:
    """One dead letter, with its payload. Raises `HerdError` (`not_found`)."""
    found: DeadLetters = await ask(made(AskDead, number=number))
    if not found.letters:
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="see `sandherd dead list`"
        )
    return found.letters[0]


async def requeue(ask: Ask, number: int) -> Requeued:
    """Have a dead letter tried again by the service that gave it up."""
    letter = await dead_letter(ask, number)
    request = REQUEUES.get(letter.service)
    if request is None:
        raise HerdError.of(
            Code.REFUSED,
            f"dead letter {number} is of {letter.service}, which takes none back",
            field="number",
            remedy=f"read it with `sandherd dead show {number}`",
        )
    answer: Requeued = await ask(request(number=number), timeout=30)
    return answer


async def _one(ask: Ask, live: Request[Any], past: Request[Any], model: type[ViewT], name: str) -> ViewT:
    """The live answer if there is one, else the past one. Who is away may know it: then that is the error."""
    kind = "task" if model is TaskView else "sandbox"
    unknown = HerdError.of(Code.NOT_FOUND, f"there is no {kind} {name}", field=kind, remedy=NAME_REMEDY)
    away: list[HerdError] = []
    for question in (live, past):
        try:
            items = _items(await ask(question))
        except HerdError as error:
            if error.problem.code not in _TRY_THE_OTHER:
                raise
            away += [error] if error.problem.code is not Code.NOT_FOUND else []
        else:
            if items:
                return cast("ViewT", items[0])
    raise away[0] if away else unknown


async def _listing(ask: Ask, live: Request[Any], beyond: Request[Any], *, past: bool) -> Listing[Any]:
    if not past:
        try:
            answer = await ask(live)
            return Listing(_items(answer), answer.next_cursor, "live")
        except ServiceAwayError as away:
            return await _history_instead(ask, beyond, away)
    answer = await ask(beyond)
    return Listing(_items(answer), answer.next_cursor, "history")


async def _history_instead(ask: Ask, beyond: Request[Any], away: ServiceAwayError) -> Listing[Any]:
    """The past answer in place of the live one; if there is none either, the error is about the live one."""
    try:
        answer = await ask(beyond)
    except HerdError:
        raise away from None
    return Listing(_items(answer), answer.next_cursor, "history")


def _items(answer: Any) -> list[Any]:
    return list(answer.tasks if hasattr(answer, "tasks") else answer.sandboxes)
