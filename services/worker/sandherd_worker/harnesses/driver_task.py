"""The task and the context of a driver, and the interpretation of its result."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final, cast, get_args

from sandherd.contracts.events.agent import TurnOrigin
from sandherd.contracts.harnesses import Approvals
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.harnesses.base import AgentEnd, EventSink, FailureType
from sandherd_worker.harnesses.driver_lines import ResultLine
from sandherd_worker.harnesses.exit_reasons import out_of_memory
from sandherd_worker.herd.mcp_config import McpConfig
from sandherd_worker.herd.tools import Answer, ToolUser
from sandherd_worker.processes import Reaper, descendants
from sandherd_worker.redaction import Redactor

_ORIGINS: Final[Mapping[str, TurnOrigin]] = {"guardian_nudge": "nudge", "system": "system"}
_MONITOR_SENDER: Final = "guardian"
"""The sender of the monitor's messages, of any type."""
_AGENT_MARK: Final = "[MESSAGE FROM AGENT "


@dataclass(frozen=True, kw_only=True)
class DriverTask:
    """The task that a driver starts with."""

    text: str
    work_dir: Path
    state_dir: Path
    harness: Mapping[str, Any]
    approvals: Approvals
    resume: Mapping[str, Any] | None = None

    def begin_command(self) -> dict[str, Any]:
        """The command `begin` for the driver."""
        return {
            "do": "begin",
            "task": self.text,
            "work_dir": str(self.work_dir),
            "state_dir": str(self.state_dir),
            "harness": dict(self.harness),
            "resume": None if self.resume is None else dict(self.resume),
        }


@dataclass(frozen=True, kw_only=True)
class HarnessContext:
    """What the worker provides to a driver's harness."""

    sink: EventSink
    redactor: Redactor
    reaper: Reaper
    memory_kills: Callable[[], int | None]
    keep: Callable[[Path, str], Awaitable[None]]
    """Stores the transcript of a session: its path, and the session's id."""
    turned: Callable[[int, bool], Awaitable[None]]
    """Called at each turn's start (True) and end (False)."""
    below: Callable[[], set[int]] = descendants
    herd: McpConfig | None = None
    """The herd's own tools, if the agent is offered them."""

    async def store_session(self, path: Path, session: str) -> None:
        """Store the session of a driver that failed: it may have grown since it was last announced."""
        if os.path.exists(path):  # noqa: PTH110  # the method of Path raises for an invalid path
            await self.keep(path, session)

    async def offer_tools(
        self, request_answer: Callable[[str, int], Awaitable[Answer]], turn: Callable[[], int]
    ) -> None:
        """Offer the herd's tools to the agent; a question to a user is passed to `request_answer`."""
        if self.herd is not None:
            await self.herd.open(ToolUser(self.sink.publish, lambda question: request_answer(question, turn()), turn))

    async def withdraw_tools(self) -> None:
        """Stop offering the herd's tools, because the agent has ended."""
        if self.herd is not None:
            await self.herd.close()


def to_agent(message: InboxMessage) -> dict[str, Any]:
    """The fields of a message for the driver. They include the expiry: the driver may deliver the message later."""
    fields = message.model_dump(include={"message", "message_type", "content", "sender_id"})
    return {**fields, "expires_at": message.expires_at.timestamp(), "origin": origin_of(message)}


class IterationPrompt(InboxMessage):
    """The prompt of the next iteration, which the worker itself sends as a message."""


def origin_of(message: InboxMessage) -> TurnOrigin:
    """The origin of a turn that this message begins.

    The message-relay marks the messages of agents; a user who writes the same mark is taken for an agent.
    """
    if isinstance(message, IterationPrompt):
        return "iteration"
    if message.sender_id == _MONITOR_SENDER:
        return "nudge"
    if message.content.startswith(_AGENT_MARK):
        return "agent"
    return _ORIGINS.get(message.message_type, "user")


def as_line(command: Mapping[str, Any]) -> bytes:
    """A command as a line for the driver."""
    return json.dumps(command).encode() + b"\n"


def outcome(result: ResultLine, session: str | None, *, stopped: bool, memory_kills: int) -> AgentEnd:
    """The end of the agent, from a driver's result. The result is not trusted: unknown failures become `internal`.

    When memory is exhausted, the kernel kills the largest process, the agent; its driver then survives and reports it.
    """
    failure = result.error_type
    if failure is not None and stopped:
        failure = "stopped"
    elif failure is not None and failure not in get_args(FailureType):
        failure = "internal"
    ended = AgentEnd(
        error_type=cast("FailureType | None", failure),
        error=result.error or ("" if failure is None else "the agent's program reported a failure without a reason"),
        signal=result.signal if failure == "signal" else None,
        turns=result.turns,
        final_output=result.final_output,
        stop_reason=result.stop_reason,
        session_id=result.session_id or session,
    )
    killed = failure == "signal" and ended.signal in {None, SIGKILL}
    return out_of_memory(ended) if killed and memory_kills else ended
