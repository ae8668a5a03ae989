"""The tools themselves: a word to another agent, who the others are, and a question to a person."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus.connection import BusError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentMessageSent
from sandherd.contracts.names import UnsafeNameError, new_name, safe_name
from sandherd.contracts.requests.worker import AskPeers, PeerList
from sandherd_worker.assignment import Assignment
from sandherd_worker.herd.listening import CallRefusedError
from sandherd_worker.line import Line

LONGEST_CONTENT: Final = 16_000
"""In characters. It has to go into one event whole."""
LONGEST_QUESTION: Final = 4000
_PATIENCE: Final = 5.0
"""How long the herd may take to say who is there, in seconds."""

Answer = tuple[bool, str | None]
"""What a person says: yes or no, and why or what else."""


@dataclass(frozen=True)
class Agent:
    """The agent that uses them."""

    say: Callable[[EventData], Awaitable[bool]]
    ask: Callable[[str], Awaitable[Answer]]
    turn: Callable[[], int]


class HerdTools:
    """The tools of one sandbox's agent."""

    def __init__(self, who: Assignment, line: Line) -> None:
        self._who, self._line = who, line

    async def use(self, agent: Agent, tool: str, arguments: dict[str, Any]) -> str:
        """Use one. Raises `CallRefusedError`."""
        match tool:
            case "send_message":
                recipient, content = str(arguments.get("recipient", "")), _text(arguments, "content", LONGEST_CONTENT)
                return await self._send(agent, recipient, content)
            case "list_peers":
                return await self._list()
            case "ask_human":
                return told(*await agent.ask(_text(arguments, "question", LONGEST_QUESTION)))
            case _:
                raise CallRefusedError("there is no such tool")

    async def _send(self, agent: Agent, recipient: str, content: str) -> str:
        """It is kept with the events, and routed by the message-relay, whether the broker is there now or not."""
        try:
            safe_name(recipient, "recipient")
        except UnsafeNameError:
            raise CallRefusedError("recipient: this is no name of a sandbox; list_peers tells them") from None
        if recipient == self._who.sandbox:
            raise CallRefusedError("recipient: this is your own sandbox")
        found = await self._peers(AskPeers(sandbox=recipient))
        if found is not None and not found.peers:
            raise CallRefusedError(f"no agent works in {recipient} now; list_peers tells in which")
        message = new_name("msg")
        sent = AgentMessageSent(turn=agent.turn(), recipient=recipient, content=content, message_id=message)
        if not await agent.say(sent):
            raise CallRefusedError("content: this can't be sent as it is, and nobody was told it")
        return f"{message} is on its way to {recipient}. An answer, if there is one, comes as a message to you."

    async def _list(self) -> str:
        found = await self._peers(AskPeers())
        if found is None:
            raise CallRefusedError("the herd can't be asked now; try again later")
        return found.model_dump_json()

    async def _peers(self, question: AskPeers) -> PeerList | None:
        """The answer; None if there is none now."""
        try:
            async with asyncio.timeout(_PATIENCE):
                bus = await self._line.bus()
                return await bus.ask(question, self._who.project, sandbox=self._who.sandbox, timeout=_PATIENCE)
        except (BusError, TimeoutError):
            return None


def told(granted: bool, reason: str | None) -> str:  # noqa: FBT001  # an answer
    """A person's answer, in words. Pure."""
    if granted:
        return reason or "yes"
    return f"no: {reason}" if reason else "no"


def _text(arguments: dict[str, Any], name: str, longest: int) -> str:
    text = arguments.get(name)
    if not isinstance(text, str) or not text.strip() or "\x00" in text:
        raise CallRefusedError(f"{name}: there is no text")
    if len(text) > longest:
        raise CallRefusedError(f"{name}: {len(text)} characters; {longest} are the most")
    return text
