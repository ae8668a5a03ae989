"""What a driver is started with, and what its result means."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, cast, get_args

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.harnesses import Approvals
from sandherd_worker.harnesses.base import Ended, FailureType, Voice
from sandherd_worker.harnesses.driver_lines import Result
from sandherd_worker.harnesses.judging import for_memory
from sandherd_worker.herd.offering import Herd
from sandherd_worker.herd.tools import Agent, Answer
from sandherd_worker.processes import Reaper, descendants
from sandherd_worker.redaction import Redactor


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the driver is told to begin with."""

    text: str
    work_dir: Path
    state_dir: Path
    harness: Mapping[str, Any]
    approvals: Approvals
    resume: Mapping[str, Any] | None = None

    def begin(self) -> dict[str, Any]:
        """The command that it is told."""
        return {
            "do": "begin",
            "task": self.text,
            "work_dir": str(self.work_dir),
            "state_dir": str(self.state_dir),
            "harness": dict(self.harness),
            "resume": None if self.resume is None else dict(self.resume),
        }


@dataclass(frozen=True, kw_only=True)
class Around:
    """What the worker gives a driver's harness."""

    voice: Voice
    redactor: Redactor
    reaper: Reaper
    memory_kills: Callable[[], int | None]
    keep: Callable[[Path, str], Awaitable[None]]
    """Puts a session's file by, under the session's name."""
    turned: Callable[[int, bool], Awaitable[None]]
    """Told of each turn's beginning (True) and end."""
    below: Callable[[], set[int]] = descendants
    herd: Herd | None = None
    """The herd's own tools, if the agent is offered them."""

    async def keep_what_is_left(self, path: Path, session: str) -> None:
        """Put by the session of a driver that has not ended in order: it may hold more than when it was last named."""
        if os.path.exists(path):  # noqa: PTH110  # that of a path raises for what is none
            await self.keep(path, session)

    async def offer(self, ask: Callable[[str, int], Awaitable[Answer]], turn: Callable[[], int]) -> None:
        """Let the agent use them; what it asks a person goes by `ask`."""
        if self.herd is not None:
            await self.herd.open(Agent(self.voice.say, lambda question: ask(question, turn()), turn))

    async def part(self) -> None:
        """The agent has ended."""
        if self.herd is not None:
            await self.herd.close()


def to_agent(message: InboxMessage) -> dict[str, Any]:
    """What of a message the driver is told; it may have to hold it, and then it needs to know for how long."""
    told = message.model_dump(include={"message", "message_type", "content", "sender_id"})
    return {**told, "expires_at": message.expires_at.timestamp()}


def as_line(command: Mapping[str, Any]) -> bytes:
    """A command as the driver reads it."""
    return json.dumps(command).encode() + b"\n"


def outcome(result: Result, session: str | None, *, stopped: bool, memory_kills: int) -> Ended:
    """What a driver says came of its task, as the worker says it. What it says is looked at before it is believed.

    It is the largest process that the kernel kills for memory: the agent, and then its driver lives to tell of it.
    """
    failure = result.error_type
    if failure is not None and stopped:
        failure = "stopped"
    elif failure is not None and failure not in get_args(FailureType):
        failure = "internal"
    ended = Ended(
        error_type=cast("FailureType | None", failure),
        error=result.error or ("" if failure is None else "the agent's program says that it failed"),
        signal=result.signal if failure == "signal" else None,
        turns=result.turns,
        final_output=result.final_output,
        stop_reason=result.stop_reason,
        session_id=result.session_id or session,
    )
    killed = failure == "signal" and ended.signal in {None, SIGKILL}
    return for_memory(ended) if killed and memory_kills else ended
