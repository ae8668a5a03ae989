"""Runs an agent: publishes its events as they happen, and passes messages to it between two calls of its model."""

import asyncio
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandherd_drivers.commands import EXPIRED, origin_of_turn
from sandherd_drivers.openhands.conversation import OpenHandsConversation
from sandherd_drivers.openhands.event_mapper import Document, OpenHandsEventMapper, terminal_output
from sandherd_drivers.openhands.threads import Threads
from sandherd_drivers.openhands.usage import UsageMeter
from sandherd_drivers.wire import Begin, Message, Wire

_TOOL_GRACE: Final = 2.0
"""How long a tool may continue after its turn was stopped, in seconds, before the turn counts as ended anyway."""
_POLL_SECONDS: Final = 0.1
_SAVE_INTERVAL: Final = 0.5
"""The minimum interval between two writes of the transcript within a turn, in seconds."""
_SAVE_INTERVAL_FACTOR: Final = 20
"""The interval is also at least this many times the duration of the last write."""
_TASK_SENDER: Final = "task"
_PREVIEW_LENGTH: Final = 500
_RESULT_EVENT_KINDS: Final = frozenset({"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"})
_SENDER_PREFIXES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""The mark for the sender, by type of message, because the agent gets every message as one of its user."""


class OpenHandsAgent:
    """Runs and stops a conversation, and passes messages to it. Call all methods but `open` in the loop's thread."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._conversation: OpenHandsConversation | None = None
        self._run_task: asyncio.Task[None] | None = None
        self._threads = Threads()
        asyncio.get_running_loop().set_default_executor(self._threads)
        self._held_messages: deque[Message] = deque()
        self._is_delivering = False
        self._taken_messages: set[str] = set()
        self._transcript = Path()
        self._loop = asyncio.get_running_loop()
        self._save_timer: asyncio.TimerHandle | None = None
        self._next_save_at = 0.0
        self.mapper = OpenHandsEventMapper(None, time.monotonic)
        self.meter = UsageMeter()
        self.turn = 0
        self.preview = ""
        """The beginning of the message that starts the next turn."""
        self.origin: str | None = None
        """The origin of the next turn, as in `agent.turn_started`."""
        self.interrupted = False
        self.run_requested = asyncio.Event()
        """Set when a message was delivered that only a new run will handle."""

    @property
    def conversation(self) -> OpenHandsConversation:
        """The conversation; it must be open."""
        assert self._conversation is not None, "it is not open"
        return self._conversation

    @property
    def is_open(self) -> bool:
        """Whether the conversation is open, so that the agent can get messages."""
        return self._conversation is not None

    def open(self, begin: Begin) -> OpenHandsConversation:
        """Load the SDK and give the agent its task. Takes seconds; call it in a thread. Raises what the SDK raises."""
        conversation = OpenHandsConversation.open(begin, self._handle_event)
        self.mapper.model = conversation.model
        self.meter = UsageMeter(conversation.totals)
        self._transcript = Path(begin.state_dir) / f"{conversation.session_id}.jsonl"
        conversation.send(begin.task, _TASK_SENDER)
        self.preview, self.origin = begin.task[:_PREVIEW_LENGTH], begin.origin
        return conversation

    def attach(self, conversation: OpenHandsConversation) -> None:
        """Accept messages from now on, and request the first run. Called in the loop's thread, after `open`."""
        self._conversation = conversation
        # Reported before the file exists: if the driver is killed in the first turn, the worker knows the path.
        self._wire.report_transcript(self._transcript, conversation.session_id, keep=False)
        self.run_requested.set()
        self._deliver_waiting()

    # --- messages

    def deliver(self, message: Message) -> None:
        """Pass a message to the agent now, or before its model's next call; once, even if it is delivered again."""
        if message.message in self._taken_messages:
            self._wire.report_taken(message.message)
        elif not self.has_received(message):
            self._held_messages.append(message)
            if not self._is_running:
                self._deliver_waiting()

    def has_received(self, message: Message) -> bool:
        """Whether this message was passed to the agent, or is held for it."""
        return message.message in self._taken_messages or any(
            held.message == message.message for held in self._held_messages
        )

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the messages that are held."""
        while self._held_messages:
            self._wire.report_refused(self._held_messages.popleft().message, reason)

    @property
    def _is_running(self) -> bool:
        return self._run_task is not None and not self._run_task.done()

    def _deliver_waiting(self) -> None:
        # A model's protocol allows no message between a call and its result. Passing a message on also causes an event,
        # which calls this method: the next message must wait until this one has its receipt.
        while (
            self._conversation is not None
            and self._held_messages
            and not self._is_delivering
            and not self.mapper.is_busy
        ):
            self._is_delivering = True
            try:
                self._send(self._conversation, self._held_messages.popleft())
            finally:
                self._is_delivering = False

    def _send(self, conversation: OpenHandsConversation, message: Message) -> None:
        if message.is_expired(time.time()):
            self._wire.report_refused(message.message, EXPIRED)
            return
        prefix = "" if message.content.startswith("[") else _SENDER_PREFIXES.get(message.message_type, "")
        try:
            conversation.send(f"{prefix}{message.content}", message.sender_id or message.message_type)
        except Exception as error:  # noqa: BLE001  # an error of the SDK must not affect the other messages
            self._wire.report_refused(message.message, f"{type(error).__name__}: {error}")
            return
        self._taken_messages.add(message.message)
        self._wire.report_taken(message.message)
        if self.interrupted or not self._is_running:
            earlier = [self.origin] if self.run_requested.is_set() else []
            self.preview, self.origin = message.content[:_PREVIEW_LENGTH], origin_of_turn([*earlier, message.origin])
            self.run_requested.set()

    # --- running

    async def run(self) -> str:
        """Run the conversation until it ends or is interrupted; returns its status."""
        self.run_requested.clear()
        self.mapper.last_error = None
        status = "interrupted"
        while not self.interrupted:
            run = self._run_task = asyncio.get_running_loop().create_task(self.conversation.run())
            await asyncio.wait([run])
            if run.cancelled():  # before it had begun, so the conversation's status is that of an earlier run
                status = "interrupted"
                break
            error, status = run.exception(), self.conversation.status
            if error is not None and status != "error":
                self._handle_event(
                    {"kind": "ConversationErrorEvent", "code": type(error).__name__, "detail": str(error)}
                )
                status = "error"
            if status == "waiting_for_confirmation":
                await self._request_approvals()
            elif status != "idle":
                break
        if self.interrupted:
            await self._wait_for_tools()
        self.conversation.refuse_pending("the turn was stopped")
        self._deliver_waiting()
        return status

    async def _wait_for_tools(self) -> None:
        """Wait until the tools have stopped: a cancelled run does not stop them.

        The request is repeated, because a command that was typed only after the first request would miss it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOOL_GRACE):
                while self._threads.is_busy:
                    self.conversation.interrupt_tools()
                    await asyncio.sleep(_POLL_SECONDS)

    async def _request_approvals(self) -> None:
        """Request approval for all calls that wait for it, and refuse those that are denied."""
        calls = self.conversation.calls_needing_approval()
        decisions = await asyncio.gather(
            *(self._wire.request_approval(call.tool, call.input, call.summary) for call in calls)
        )
        for call, decision in zip(calls, decisions, strict=True):
            if not decision.granted:
                self.mapper.denials[call.action_id] = decision.outcome
                self.conversation.refuse(call.action_id, decision.reason or "not approved")

    def interrupt(self) -> None:
        """Stop the current work: a command, a response of its model, or an approval request.

        As with the SDK's own `interrupt`, the conversation is then paused, and continues when it is run again. The
        SDK's own `pause` would wait for the end of the step, which may be a command that never ends.
        """
        self.interrupted = True
        self._wire.deny_pending_approvals()
        if self._run_task is not None and not self._run_task.done():
            self._run_task.cancel()
            self.conversation.interrupt_tools()

    def report_transcript(self) -> None:
        """Write the transcript and report its path."""
        try:
            self.conversation.save(self._transcript)
        except OSError as error:
            self._wire.publish_event("agent.error", turn=self.turn, error=f"no transcript: {error}", phase="transcript")
        else:
            self._wire.report_transcript(self._transcript, self.conversation.session_id)

    def _schedule_save(self) -> None:
        if self._save_timer is None:
            self._save_timer = self._loop.call_at(max(self._loop.time(), self._next_save_at), self._save_transcript)

    def _save_transcript(self) -> None:
        """Write the transcript within a turn, so that it exists if the driver is killed."""
        began, self._save_timer = self._loop.time(), None
        with suppress(OSError, ValueError):  # the SDK is writing a file; the next save includes it
            self.conversation.save(self._transcript)
        now = self._loop.time()
        self._next_save_at = now + max(_SAVE_INTERVAL, _SAVE_INTERVAL_FACTOR * (now - began))

    # --- events

    def _handle_event(self, event: Document) -> None:
        for type, data in self.mapper.events_for(event):
            self._wire.publish_event(type, turn=self.turn, **data)
        if text := terminal_output(event):
            sys.stdout.write(text)
            sys.stdout.flush()
        if self._conversation is not None:
            self._loop.call_soon_threadsafe(self._schedule_save)
        # The SDK would place a message that is passed on during a model call after that call's response, which ignores
        # it. This runs between two calls, within the SDK's step, so the model gets the message with its next call.
        if event["kind"] in _RESULT_EVENT_KINDS or (event["kind"] == "MessageEvent" and event.get("source") == "agent"):
            self._deliver_waiting()
