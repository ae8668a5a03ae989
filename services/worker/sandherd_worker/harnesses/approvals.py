"""Tool approvals: the task's policy decides on some tools; for the others a user's approval is requested and awaited.

The worker and, through an event, the message-relay know a pending approval; the message-relay stores it. If the broker
is unavailable or restarts, the approval only waits longer. It also stays pending if this worker is lost and the task
continues: when the agent of the next attempt requests the same, the message-relay treats it as the same approval, and
an answer sent in between applies. If an agent stops waiting while its worker continues, the approval is withdrawn, and
an event is published.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.events import EventData
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.harnesses import HERD_SERVER, Approvals, Verdict
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.names import new_name
from sandherd_worker.harnesses.base import MessageRefusedError

_BY_STRICTNESS: Final[tuple[Verdict, ...]] = ("allow", "ask", "deny")
QUESTION_TOOL: Final = "ask_human"
_QUESTION_TOOL_NAMES: Final = frozenset(
    {QUESTION_TOOL, f"mcp__{HERD_SERVER}__{QUESTION_TOOL}", f"{HERD_SERVER}_{QUESTION_TOOL}"}
)
_WITHDRAWN: Final = "the turn has ended before an answer came"
_TURN_OVER: Final = "the agent's turn has ended"
_NOT_AWAITED: Final = "the agent no longer waits for the answer"
_NOT_ALLOWED: Final = "the task does not allow this tool"
_NOT_PUBLISHED: Final = "the tool's input can't be shown to a user"

Decide = Callable[[str, bool, str | None, bool], Awaitable[None]]
"""Passes a decision to the agent: the agent's id of the request, whether the tool is allowed, the reason, and whether a
user decided."""
_Decide = Callable[[bool, str | None, bool], Awaitable[None]]


def policy(approvals: Approvals, tool: str) -> Verdict:
    """The policy for a tool. An exact name has precedence over a pattern, a long pattern over a short one. Pure.

    A question to a user needs no approval, unless the tool is named or a pattern denies it.
    """
    if tool in approvals.tools:
        return approvals.tools[tool]
    matches = [
        (len(pattern), _BY_STRICTNESS.index(verdict))
        for pattern, verdict in approvals.tools.items()
        if fnmatchcase(tool, pattern)
    ]
    if tool in _QUESTION_TOOL_NAMES and "deny" not in {_BY_STRICTNESS[index] for _, index in matches}:
        return "allow"
    return _BY_STRICTNESS[max(matches)[1]] if matches else approvals.otherwise


@dataclass(frozen=True)
class _PendingApproval:
    decide: _Decide
    drop: Callable[[], None]
    """Called when the approval is withdrawn."""
    timeout: asyncio.TimerHandle | None


class ApprovalGate:
    """All approvals and questions to a user that one agent requests."""

    def __init__(
        self,
        approvals: Approvals,
        publish: Callable[[EventData], Awaitable[bool]],
        decide: Decide,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ending` returns whether the worker ends the agent. Then no approval is withdrawn: it may be repeated."""
        self._approvals = approvals
        self._publish = publish
        self._decide = decide
        self._ending = ending
        self._pending: dict[str, _PendingApproval] = {}
        self._deciding: set[asyncio.Future[None]] = set()

    async def request_approval(
        self, question: str, tool: str, input: dict[str, Any], reason: str | None, turn: int
    ) -> None:
        """Decide by the task's policy, or request a user's approval. `question`: the agent's id of the request."""
        verdict, decide = policy(self._approvals, tool), partial(self._decide, question)
        if verdict != "ask":
            self._decide_later(decide, granted=verdict == "allow", reason=None if verdict == "allow" else _NOT_ALLOWED)
            return
        await self._request(self._wait(decide, _nothing), tool, input, reason, turn)

    async def request_answer(self, question: str, turn: int) -> tuple[bool, str | None]:
        """Publish a question to the user, and wait for the answer: yes or no, and a text. No policy applies."""
        answered: asyncio.Future[tuple[bool, str | None]] = asyncio.get_running_loop().create_future()

        def answer(granted: bool, reason: str | None) -> None:  # noqa: FBT001  # an answer
            if not answered.done():
                answered.set_result((granted, reason))

        async def decide(granted: bool, reason: str | None, _by_user: bool) -> None:  # noqa: FBT001  # an answer
            answer(granted, reason)

        name = self._wait(decide, lambda: answer(False, _WITHDRAWN))
        try:
            await self._request(name, QUESTION_TOOL, {"question": question}, question, turn)
            return await answered
        finally:
            if self._pop(name) is not None:
                await self._publish_withdrawn(name, _NOT_AWAITED, turn)

    def _wait(self, decide: _Decide, drop: Callable[[], None]) -> str:
        """Register a pending approval under a new id."""
        name, seconds = new_name("apr"), self._approvals.timeout_seconds
        loop = asyncio.get_running_loop()
        timeout = None if seconds is None else loop.call_later(seconds, self._expire, name)
        self._pending[name] = _PendingApproval(decide, drop, timeout)
        return name

    async def _request(self, name: str, tool: str, input: dict[str, Any], reason: str | None, turn: int) -> None:
        """Publish the request. If it can't be published, the tool is denied, because no user will see the request."""
        seconds = self._approvals.timeout_seconds
        published = await self._publish(
            AgentApprovalRequested(
                turn=turn,
                approval_id=name,
                tool=tool,
                input=input,
                reason=reason,
                timeout_seconds=seconds,
                on_timeout=None if seconds is None else self._approvals.on_timeout,
            )
        )
        if not published and (pending := self._pop(name)) is not None:
            self._decide_later(pending.decide, granted=False, reason=_NOT_PUBLISHED)

    async def answer(self, message: InboxMessage) -> None:
        """Apply a user's answer. Raises `MessageRefusedError` if no such approval is pending."""
        try:
            answer = ApprovalAnswer.model_validate_json(message.content)
        except ValidationError:
            raise MessageRefusedError("this is not an answer to an approval") from None
        pending = self._pop(answer.approval_id)
        if pending is None:
            raise MessageRefusedError("this approval is no longer pending")
        await pending.decide(answer.granted, answer.reason, True)

    @property
    def waiting(self) -> int:
        """The number of pending approvals."""
        return len(self._pending)

    async def withdraw(self, turn: int, reason: str = _TURN_OVER) -> None:
        """Withdraw all pending approvals because the turn or the agent has ended, and publish an event for each."""
        for name in self._drop():
            await self._publish_withdrawn(name, reason, turn)

    async def _publish_withdrawn(self, name: str, reason: str, turn: int) -> None:
        if not self._ending():
            await self._publish(AgentApprovalWithdrawn(turn=turn, approval_id=name, reason=reason))

    async def close(self) -> None:
        """Drop all pending approvals, and wait for running tasks to end."""
        self._drop()
        await cancel_and_wait(self._deciding, again_after=SHORT_CLEANUP_SECONDS)

    def _drop(self) -> list[str]:
        dropped = list(self._pending)
        for name in dropped:
            pending = self._pop(name)
            if pending is not None:
                pending.drop()
        return dropped

    def _pop(self, name: str) -> _PendingApproval | None:
        pending = self._pending.pop(name, None)
        if pending is not None and pending.timeout is not None:
            pending.timeout.cancel()
        return pending

    def _expire(self, name: str) -> None:
        pending = self._pop(name)
        if pending is not None:
            text = f"not answered within {self._approvals.timeout_seconds} s"
            self._decide_later(pending.decide, granted=self._approvals.on_timeout == "allow", reason=text)

    def _decide_later(self, decide: _Decide, *, granted: bool, reason: str | None) -> None:
        """Send a decision that no user has made, in the background: the agent may read it only after its own events."""
        task = asyncio.ensure_future(decide(granted, reason, False))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)


def _nothing() -> None:
    """Called when a driver's request is withdrawn: nothing in the worker waits for it."""
