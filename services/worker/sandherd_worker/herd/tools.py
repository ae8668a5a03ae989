"""The herd's tools: send a message to another agent, list the other agents, and send a question to a user."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus.connection import BusError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.names import UnsafeNameError, new_name, safe_name
from sandherd.contracts.requests.worker import ListPeers, PeerList
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.herd.tool_socket import CallRefusedError

LONGEST_CONTENT: Final = 16_000
"""Maximum number of characters of a message, so that it fits in one event without truncation."""
LONGEST_QUESTION: Final = 4000
_LIST_SECONDS: Final = 5.0
"""How long the herd may take to list the agents."""

Answer = tuple[bool, str | None]
"""A user's answer: yes or no, and a reason or text."""


@dataclass(frozen=True)
class ToolUser:
    """The agent that uses the tools."""

    publish: Callable[[EventData], Awaitable[bool]]
    request_answer: Callable[[str], Awaitable[Answer]]
    turn: Callable[[], int]


class HerdTools:
    """The tools of one sandbox's agent."""

    def __init__(self, assignment: Assignment, line: CurrentConnection) -> None:
        self._assignment, self._line = assignment, line

    async def use(self, agent: ToolUser, tool: str, arguments: dict[str, Any]) -> str:
        """Run one tool. Raises `CallRefusedError`."""
        match tool:
            case "send_message":
                recipient, content = str(arguments.get("recipient", "")), _text(arguments, "content", LONGEST_CONTENT)
                return await self._send(agent, recipient, content)
            case "list_peers":
                return await self._list()
            case "ask_human":
                return answer_text(*await agent.request_answer(_text(arguments, "question", LONGEST_QUESTION)))
            case _:
                raise CallRefusedError("there is no such tool")

    async def _send(self, agent: ToolUser, recipient: str, content: str) -> str:
        """Publish the message as an event, which the message-relay routes, even while the broker is unavailable."""
        try:
            safe_name(recipient, "recipient")
        except UnsafeNameError:
            raise CallRefusedError("recipient: this is not a valid sandbox name; list_peers lists them") from None
        if recipient == self._assignment.sandbox:
            raise CallRefusedError("recipient: this is your own sandbox")
        peers = await self._peers(ListPeers(sandbox=recipient))
        if peers is not None and not peers.peers:
            raise CallRefusedError(f"no agent works in {recipient} now; list_peers lists the sandboxes with agents")
        message = new_name("msg")
        sent = AgentMessageSent(turn=agent.turn(), recipient=recipient, content=content, message_id=message)
        if not await agent.publish(sent):
            raise CallRefusedError("content: this can't be sent as it is; nothing was sent")
        return f"{message} is on its way to {recipient}. A reply, if there is one, arrives as a message to you."

    async def _list(self) -> str:
        peers = await self._peers(ListPeers())
        if peers is None:
            raise CallRefusedError("the herd is unavailable; try again later")
        return peers.model_dump_json()

    async def _peers(self, question: ListPeers) -> PeerList | None:
        """The agents that the herd lists; None if it is unavailable."""
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                bus = await self._line.bus()
                return await bus.ask(
                    question, self._assignment.project, sandbox=self._assignment.sandbox, timeout=_LIST_SECONDS
                )
        except (BusError, TimeoutError):
            return None


def answer_text(granted: bool, reason: str | None) -> str:  # noqa: FBT001  # an answer
    """A user's answer as text. Pure."""
    if granted:
        return reason or "yes"
    return f"no: {reason}" if reason else "no"


def _text(arguments: dict[str, Any], name: str, longest: int) -> str:
    text = arguments.get(name)
    if not isinstance(text, str) or not text.strip() or "\x00" in text:
        raise CallRefusedError(f"{name}: text is missing")
    if len(text) > longest:
        raise CallRefusedError(f"{name}: {len(text)} characters; the limit is {longest}")
    return text
