"""Schedules the requests of a service: projects take turns, each within its limits, and every request gets a reply.

A request is received at once, waits in its project's queue, and is processed when it is its turn. If the queue is full
or the budget is used up, it is refused with `busy` and the time after which to retry. After its timeout, a waiting
request is not processed any more, and a running request that changes nothing is cancelled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from faststream.nats.message import NatsMessage
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import TIMEOUT_HEADER, Reply
from sandherd.service.encoded_answer import EncodedAnswer, encode_reply
from sandherd.service.request_budget import Budget, Budgets
from sandherd.service.request_queue import RequestLane, RequestQueue
from sandherd.telemetry import logs
from sandherd.telemetry.line_limit import LineLimit

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""The timeout of a request without the header for it, in seconds."""
MAX_TIMEOUT_SECONDS: Final = 120.0
"""The maximum timeout of a request, in seconds. A longer one in the header is reduced to it."""
_DEFAULT_MAX_PAYLOAD_BYTES: Final = 1024 * 1024
_QUEUE_FULL_RETRY_SECONDS: Final = 1.0
_MAX_RECEIVE_SECONDS: Final = 0.01
"""After requests were received for this time, other tasks run once, because nats-py delivers requests without a pause.
"""
_TIMED_OUT: Final = Problem(code=Code.BUSY, message="the request timed out before a reply", remedy="retry")
_SHUTTING_DOWN: Final = Problem(code=Code.UNAVAILABLE, message="this replica of the service is ending", remedy="retry")
_unsent_log_limit: Final = LineLimit()
"""Limits the log lines about replies that were not sent. While the connection is lost, there may be very many."""
_log: Final = logs.get("request_scheduler")

Process = Callable[[NatsMessage], Awaitable[Reply[Any] | None]]
"""A function that processes a request. It returns the reply, or None if another replica replies."""
Count = Callable[[str, Reply[Any], float], None]
"""A function that is called for each reply, with the kind of request, the reply, and the seconds since its receipt."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits per project: `waiting` requests in each lane, and the `budget` over all lanes."""

    waiting: int
    budget: Budget


@dataclass(frozen=True, eq=False)
class _Pending:
    """A request that waits or is processed. `received` and `deadline` are times of the event loop."""

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
        self._lanes: dict[str, tuple[RequestLane, RequestQueue[_Pending]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._receiving_since = 0.0

    def receiver(
        self, lane: RequestLane, request_type: str, process: Process
    ) -> Callable[[NatsMessage], Awaitable[None]]:
        """A callback that receives requests of one kind as they arrive. It does not wait until they are processed.

        It drops a request without a reply subject if the request changes nothing.
        """
        self._lanes.setdefault(lane.name, (lane, RequestQueue(lane, self._limits.waiting)))

        async def receive(message: NatsMessage) -> None:
            if lane.cancels and not message.raw_message.reply:
                return
            now = _now()
            pending = _Pending(request_type, process, message, now, now + timeout_of(message))
            refusal = self._enqueue(lane, pending)
            if refusal is not None:
                await self._send_reply(pending, Reply[Any](error=refusal))
            self._start(lane.name)
            if time.monotonic() - self._receiving_since >= _MAX_RECEIVE_SECONDS:
                await asyncio.sleep(0)
                self._receiving_since = time.monotonic()

        return receive

    async def close(self) -> None:
        """Refuse all waiting requests, and cancel the running ones, which are refused, too."""
        self._ending = True
        waiting = [pending for _, queue in self._lanes.values() for pending in queue.clear()]
        await asyncio.gather(*[self._send_reply(pending, Reply[Any](error=_SHUTTING_DOWN)) for pending in waiting])
        await cancel_and_wait(list(self._tasks))

    def _enqueue(self, lane: RequestLane, pending: _Pending) -> Problem | None:
        """Queue a request. Returns None, or the reason if it is refused."""
        if self._ending:
            return _SHUTTING_DOWN
        project, sandbox = _sender(pending.message)
        wait = self._budgets.wait(project, pending.received) if lane.budgeted else 0.0
        if wait > 0:
            return budget_refusal(project, wait, self._limits.budget)
        queue = self._lanes[lane.name][1]
        if queue.waiting(project) >= self._limits.waiting:
            self._refuse_timed_out(queue, project, pending.received)
        if not queue.offer(project, sandbox, pending):
            return queue_full_refusal(project, queue.waiting(project))
        return None

    def _refuse_timed_out(self, queue: RequestQueue[_Pending], project: str, now: float) -> None:
        for late in queue.remove(project, lambda waiting: waiting.deadline <= now):
            self._spawn(self._send_reply(late, Reply[Any](error=_TIMED_OUT)))

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
        started_at = _now()
        reply: Reply[Any] | None = Reply[Any](error=_TIMED_OUT)
        try:
            if pending.deadline > started_at:
                reply = await _reply_to(lane, pending)
        except asyncio.CancelledError:
            reply = Reply[Any](error=_SHUTTING_DOWN)
            raise
        finally:
            queue.release(project)
            if lane.budgeted:
                self._budgets.spend(project, _now() - started_at, rows_of(reply) if reply else 0, _now())
            if reply is not None:
                await self._send_reply(pending, reply)
            self._start(lane_name)

    async def _send_reply(self, pending: _Pending, reply: Reply[Any]) -> None:
        document = encode_reply(reply)
        if len(document) > (maximum := _max_payload(pending.message)):
            reply = Reply[Any](error=too_large_refusal(len(document), maximum))
            document = encode_reply(reply)
        self._count(pending.request_type, reply, _now() - pending.received)
        await _respond(pending.message, document)


async def _reply_to(lane: RequestLane, pending: _Pending) -> Reply[Any] | None:
    try:
        async with asyncio.timeout_at(pending.deadline if lane.cancels else None):
            return await pending.process(pending.message)
    except TimeoutError:
        return Reply[Any](error=_TIMED_OUT)


def timeout_of(message: NatsMessage) -> float:
    """The seconds for which the requester waits for the reply, from the header of its request."""
    try:
        seconds = float(message.headers.get(TIMEOUT_HEADER, DEFAULT_TIMEOUT_SECONDS))
    except ValueError:
        return DEFAULT_TIMEOUT_SECONDS
    return min(seconds, MAX_TIMEOUT_SECONDS) if seconds > 0 else DEFAULT_TIMEOUT_SECONDS


def budget_refusal(project: str, wait: float, budget: Budget) -> Problem:
    """The refusal if a project has used up its budget of time or rows. `wait` is in seconds."""
    return Problem(
        code=Code.BUSY,
        message=f"{project} has used its request budget of {budget.seconds:g} s or {budget.rows:g} rows per minute",
        remedy="retry later, or request less: name a sandbox, or set since and until",
        retry_after_seconds=round(wait, 3),
    )


def queue_full_refusal(project: str, waiting: int) -> Problem:
    """The refusal if a project or a sandbox has its maximum number of waiting requests."""
    return Problem(
        code=Code.BUSY,
        message=f"{waiting} requests of {project} are waiting already",
        remedy="retry when some have been processed",
        retry_after_seconds=_QUEUE_FULL_RETRY_SECONDS,
    )


def too_large_refusal(size: int, maximum: int) -> Problem:
    """The refusal that is sent in place of a reply that does not fit in a message."""
    return Problem(
        code=Code.TOO_LARGE,
        message=f"the reply has {size} bytes, and a message at most {maximum}",
        remedy="request less: name one project, task or sandbox, or a smaller limit",
    )


def rows_of(reply: Reply[Any]) -> int:
    """The number of rows in a reply: the items of all its lists."""
    answer = reply.ok
    if isinstance(answer, EncodedAnswer):
        return len(answer.items)
    fields = vars(answer).values() if isinstance(answer, BaseModel) else ()
    return sum(len(value) for value in fields if isinstance(value, list))


def _sender(message: NatsMessage) -> tuple[str, str]:
    """The project and the sandbox in the subject, which the broker has checked. A subject may have no sandbox."""
    return message.path.get("project", ""), message.path.get("sandbox", "")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _max_payload(message: NatsMessage) -> int:
    """The largest message that the broker accepts, in bytes."""
    request = message.raw_message
    client = request._client if isinstance(request, Msg) else None  # noqa: SLF001  # nats-py has no other way to it
    return _DEFAULT_MAX_PAYLOAD_BYTES if client is None else int(client.max_payload)


async def _respond(message: NatsMessage, document: bytes) -> None:
    request = message.raw_message
    if not isinstance(request, Msg) or not request.reply:
        return
    try:
        # nats-py would copy the request's headers into the reply. The requester chooses headers and reply subject, so
        # it could make the reply look like another message to the receivers on that subject.
        await replace(request, headers=None).respond(document)
    except BROKER_ERRORS as error:
        if times := _unsent_log_limit.add(request.subject, time.monotonic()):
            _log.warning("reply not sent", subject=request.subject, error=repr(error), times=times)
