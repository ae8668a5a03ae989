"""Leave to use a tool: what the task allows is decided here, and what it leaves open is asked for and waited for.

What waits is known here, and by the event that says so to the message-relay, which keeps it. A broker that is away or
started again makes it wait longer. So does the loss of this worker, as long as the task goes on: when the agent of the
next attempt asks the same, the message-relay takes it for the same question, and an answer that was given meanwhile
answers it. What an agent waits for no more, while its worker goes on, is withdrawn; that is said, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from sandherd.contracts.delivery import ApprovalAnswer, InboxMessage
from sandherd.contracts.events import EventData
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.harnesses import HERD_SERVER, Approvals, Verdict
from sandherd.contracts.names import new_name
from sandherd_worker.harnesses.base import CannotTakeError
from sandherd_worker.tasks import end_tasks

_STRICT: Final[tuple[Verdict, ...]] = ("allow", "ask", "deny")
ASK_HUMAN: Final = "ask_human"
_AS_AGENTS_CALL_IT: Final = frozenset({ASK_HUMAN, f"mcp__{HERD_SERVER}__{ASK_HUMAN}", f"{HERD_SERVER}_{ASK_HUMAN}"})
_WITHDRAWN: Final = "the turn has ended, and nobody was waited for any more"
_TURN_OVER: Final = "the agent's turn is over"
_CALLED_OFF: Final = "the agent waits for the answer no more"
_NOT_ALLOWED: Final = "the task does not allow this tool"
_NOT_SHOWN: Final = "nobody can be asked: what it is to be used with can't be shown"

Decide = Callable[[str, bool, str | None], Awaitable[None]]
"""Tells the agent: what it called its question, whether it may, and why."""
_Tell = Callable[[bool, str | None], Awaitable[None]]


def policy(approvals: Approvals, tool: str) -> Verdict:
    """What holds for a tool. Its name counts before a pattern, and a long pattern before a short one. Pure.

    To ask a person needs nobody's leave, unless it is named.
    """
    if tool in approvals.tools:
        return approvals.tools[tool]
    fitting = [(len(name), _STRICT.index(said)) for name, said in approvals.tools.items() if fnmatchcase(tool, name)]
    if tool in _AS_AGENTS_CALL_IT and "deny" not in {_STRICT[index] for _, index in fitting}:
        return "allow"
    return _STRICT[max(fitting)[1]] if fitting else approvals.otherwise


@dataclass(frozen=True)
class _Asked:
    decide: _Tell
    drop: Callable[[], None]
    """Called when it is withdrawn."""
    waiting: asyncio.TimerHandle | None


class Desk:
    """All that one agent asks leave for, or asks a person."""

    def __init__(
        self,
        approvals: Approvals,
        say: Callable[[EventData], Awaitable[bool]],
        decide: Decide,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ending`: whether we end the agent. Then nothing is withdrawn: the next attempt may ask the same."""
        self._approvals = approvals
        self._say = say
        self._decide = decide
        self._ending = ending
        self._asked: dict[str, _Asked] = {}
        self._telling: set[asyncio.Future[None]] = set()

    async def ask(self, question: str, tool: str, input: dict[str, Any], reason: str | None, turn: int) -> None:
        """Decide it by the task's policy, or ask for it."""
        verdict, decide = policy(self._approvals, tool), partial(self._decide, question)
        if verdict != "ask":
            self._tell(decide, granted=verdict == "allow", reason=None if verdict == "allow" else _NOT_ALLOWED)
            return
        await self._put(self._wait(decide, _nothing), tool, input, reason, turn)

    async def ask_person(self, question: str, turn: int) -> tuple[bool, str | None]:
        """Ask what is no leave, and wait: yes or no, and what was said to it. The policy has no say in that."""
        answered: asyncio.Future[tuple[bool, str | None]] = asyncio.get_running_loop().create_future()

        def answer(granted: bool, reason: str | None) -> None:  # noqa: FBT001  # an answer
            if not answered.done():
                answered.set_result((granted, reason))

        async def decide(granted: bool, reason: str | None) -> None:  # noqa: FBT001  # an answer
            answer(granted, reason)

        name = self._wait(decide, lambda: answer(False, _WITHDRAWN))
        try:
            await self._put(name, ASK_HUMAN, {"question": question}, question, turn)
            return await answered
        finally:
            if self._taken(name) is not None:
                await self._say_withdrawn(name, _CALLED_OFF, turn)

    def _wait(self, decide: _Tell, drop: Callable[[], None]) -> str:
        """Let a question wait, under a name of ours."""
        name, seconds = new_name("apr"), self._approvals.timeout_seconds
        loop = asyncio.get_running_loop()
        waiting = None if seconds is None else loop.call_later(seconds, self._lapse, name)
        self._asked[name] = _Asked(decide, drop, waiting)
        return name

    async def _put(self, name: str, tool: str, input: dict[str, Any], reason: str | None, turn: int) -> None:
        """Say that it is asked. What can't be said is answered with no, for nobody else will."""
        seconds = self._approvals.timeout_seconds
        said = await self._say(
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
        if not said and (asked := self._taken(name)) is not None:
            self._tell(asked.decide, granted=False, reason=_NOT_SHOWN)

    async def answer(self, message: InboxMessage) -> None:
        """Take somebody's answer. Raises `CannotTakeError` for one to nothing that waits."""
        try:
            answer = ApprovalAnswer.model_validate_json(message.content)
        except ValidationError:
            raise CannotTakeError("this is no answer to an approval") from None
        asked = self._taken(answer.approval_id)
        if asked is None:
            raise CannotTakeError("nobody waits for this approval any more")
        await asked.decide(answer.granted, answer.reason)

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return len(self._asked)

    async def withdraw(self, turn: int, why: str = _TURN_OVER) -> None:
        """The agent waits for nothing any more, and that is said: its turn or itself is over."""
        for name in self._drop():
            await self._say_withdrawn(name, why, turn)

    async def _say_withdrawn(self, name: str, why: str, turn: int) -> None:
        if not self._ending():
            await self._say(AgentApprovalWithdrawn(turn=turn, approval_id=name, reason=why))

    async def close(self) -> None:
        """Forget all, and wait until nothing is under way."""
        self._drop()
        await end_tasks(self._telling)

    def _drop(self) -> list[str]:
        dropped = list(self._asked)
        for name in dropped:
            asked = self._taken(name)
            if asked is not None:
                asked.drop()
        return dropped

    def _taken(self, name: str) -> _Asked | None:
        asked = self._asked.pop(name, None)
        if asked is not None and asked.waiting is not None:
            asked.waiting.cancel()
        return asked

    def _lapse(self, name: str) -> None:
        asked = self._taken(name)
        if asked is not None:
            text = f"nobody answered within {self._approvals.timeout_seconds} s"
            self._tell(asked.decide, granted=self._approvals.on_timeout == "allow", reason=text)

    def _tell(self, decide: _Tell, *, granted: bool, reason: str | None) -> None:
        """Without waiting: who is told may be waiting for us to hear it."""
        task = asyncio.ensure_future(decide(granted, reason))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _nothing() -> None:
    """Whoever asks for leave withdraws its question itself."""
