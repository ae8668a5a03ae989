"""Schedules the requests of a service: projects take turns, each within its limits, and every request is answered.

A request is received at once, waits in its project's queue, and is processed when it has its turn. One that can't
wait is refused with `busy` and the time after which to ask again. One whose requester has stopped waiting is dropped,
or cancelled while it is processed if it changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import nats.errors
from faststream.nats.message import NatsMessage
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.request_budget import Budget, Budgets
from sandherd.bus.request_queue import FairQueue, Lane
from sandherd.bus.together import end
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import TIMEOUT_HEADER, Reply
from sandherd.telemetry import logs

USUAL_SECONDS: Final = 30.0
"""How long a requester is taken to wait that does not say so."""
MOST_SECONDS: Final = 120.0
"""The longest that one is believed to wait."""
_FULL_SECONDS: Final = 1.0
_LATE: Final = Problem(code=Code.BUSY, message="it was not answered in the time you wait", remedy="ask again")
_ENDING: Final = Problem(code=Code.UNAVAILABLE, message="this replica of the service is ending", remedy="ask again")
_log: Final = logs.get("requests")

Process = Callable[[NatsMessage], Awaitable[Reply[Any]]]
Count = Callable[[str, Reply[Any], float], None]
"""Called for each answer with the kind, the answer, and the seconds since the request was received."""


@dataclass(frozen=True)
class RequestLimits:
    """What holds for every project, in each lane (`waiting`) or over all lanes (`budget`)."""

    waiting: int
    budget: Budget


@dataclass(frozen=True, eq=False)
class _Pending:
    request_type: str
    process: Process
    message: NatsMessage
    received: float
    deadline: float


class RequestScheduler:
    """The lanes of one service."""

    def __init__(self, limits: RequestLimits, count: Count) -> None:
        self._limits = limits
        self._count = count
        self._budgets = Budgets(limits.budget)
        self._lanes: dict[str, tuple[Lane, FairQueue[_Pending]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    def receiver(self, lane: Lane, request_type: str, process: Process) -> Callable[[NatsMessage], Awaitable[None]]:
        """What takes the requests of one kind as they arrive; it never waits for one to be processed."""
        self._lanes.setdefault(lane.name, (lane, FairQueue(lane, self._limits.waiting)))

        async def receive(message: NatsMessage) -> None:
            now = _now()
            pending = _Pending(request_type, process, message, now, now + patience_of(message))
            refusal = self._enter(lane, pending)
            if refusal is not None:
                await self._answer(pending, Reply[Any](error=refusal))
            self._start(lane.name)

        return receive

    async def close(self) -> None:
        """Answer everybody who waits now."""
        self._ending = True
        waiting = [pending for _, queue in self._lanes.values() for pending in queue.clear()]
        await asyncio.gather(*[self._answer(pending, Reply[Any](error=_ENDING)) for pending in waiting])
        await end(list(self._tasks))

    def _enter(self, lane: Lane, pending: _Pending) -> Problem | None:
        """Let it wait; or returns why it may not."""
        if self._ending:
            return _ENDING
        project, sandbox = _sender(pending.message)
        wait = self._budgets.wait(project, pending.received) if lane.budgeted else 0.0
        if wait > 0:
            return over_budget(project, wait, self._limits.budget)
        queue = self._lanes[lane.name][1]
        if queue.waiting(project) >= self._limits.waiting:
            self._drop_late(queue, project, pending.received)
        if not queue.offer(project, sandbox, pending):
            return queue_full(project, queue.waiting(project))
        return None

    def _drop_late(self, queue: FairQueue[_Pending], project: str, now: float) -> None:
        for late in queue.remove(project, lambda waiting: waiting.deadline <= now):
            self._spawn(self._answer(late, Reply[Any](error=_LATE)))

    def _start(self, lane: str) -> None:
        _, queue = self._lanes[lane]
        while not self._ending and (taken := queue.take()) is not None:
            self._spawn(self._run(lane, *taken))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lane_name: str, project: str, pending: _Pending) -> None:
        lane, queue = self._lanes[lane_name]
        begun = _now()
        reply = Reply[Any](error=_LATE)
        try:
            if pending.deadline > begun:
                reply = await _processed(lane, pending)
        except asyncio.CancelledError:
            reply = Reply[Any](error=_ENDING)
            raise
        finally:
            queue.done(project)
            if lane.budgeted:
                self._budgets.spend(project, _now() - begun, rows_of(reply), _now())
            await self._answer(pending, reply)
            self._start(lane_name)

    async def _answer(self, pending: _Pending, reply: Reply[Any]) -> None:
        self._count(pending.request_type, reply, _now() - pending.received)
        await _respond(pending.message, reply.model_dump_json(exclude_none=True).encode())


async def _processed(lane: Lane, pending: _Pending) -> Reply[Any]:
    try:
        async with asyncio.timeout_at(pending.deadline if lane.cancels else None):
            return await pending.process(pending.message)
    except TimeoutError:
        return Reply[Any](error=_LATE)


def patience_of(message: NatsMessage) -> float:
    """How many seconds the requester waits, as its header says."""
    try:
        seconds = float(message.headers.get(TIMEOUT_HEADER, USUAL_SECONDS))
    except ValueError:
        return USUAL_SECONDS
    return min(seconds, MOST_SECONDS) if seconds > 0 else USUAL_SECONDS


def over_budget(project: str, wait: float, budget: Budget) -> Problem:
    """The refusal of a project that has used up its time or its rows."""
    return Problem(
        code=Code.BUSY,
        message=f"the requests of {project} have used their {budget.seconds:g} s or {budget.rows:g} rows a minute",
        remedy="ask again later, or for less: name a sandbox, or set since and until",
        retry_after_seconds=round(wait, 3),
    )


def queue_full(project: str, waiting: int) -> Problem:
    """The refusal where too many requests of a project wait."""
    return Problem(
        code=Code.BUSY,
        message=f"{waiting} requests of {project} wait already",
        remedy="ask again when some are answered",
        retry_after_seconds=_FULL_SECONDS,
    )


def rows_of(reply: Reply[Any]) -> int:
    """How many rows an answer holds."""
    answer = reply.ok
    fields = vars(answer).values() if isinstance(answer, BaseModel) else ()
    return sum(len(value) for value in fields if isinstance(value, list))


def _sender(message: NatsMessage) -> tuple[str, str]:
    """The project and, where the subject names one, the sandbox; the broker has checked them."""
    return message.path.get("project", ""), message.path.get("sandbox", "")


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _respond(message: NatsMessage, document: bytes) -> None:
    asked = message.raw_message
    if not isinstance(asked, Msg) or not asked.reply:
        return
    try:
        await asked.respond(document)
    except (nats.errors.Error, OSError) as error:
        _log.warning("could not answer", subject=asked.subject, error=repr(error))
