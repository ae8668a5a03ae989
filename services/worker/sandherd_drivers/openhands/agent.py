"""An agent in its conversation: what it does is told as it happens, what is said to it comes in between two calls."""

import asyncio
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandherd_drivers.commands import EXPIRED
from sandherd_drivers.openhands.conversation import Conversation
from sandherd_drivers.openhands.meter import Meter
from sandherd_drivers.openhands.telling import Document, Telling, printed
from sandherd_drivers.openhands.threads import Threads
from sandherd_drivers.wire import Begin, Message, Wire

_TOOL_GRACE: Final = 2.0
"""How long a tool may go on after its turn was stopped, in seconds, before the turn counts as over all the same."""
_LOOK_AGAIN: Final = 0.1
_KEEP_AGAIN: Final = 0.5
"""How long after the transcript was written in the middle of a turn it may be written again, in seconds."""
_KEEP_SHARE: Final = 20
"""And so many times as long as that has taken."""
_TASK_GIVER: Final = "task"
_PREVIEW: Final = 500
_ANSWERS: Final = frozenset({"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"})
_FRAMES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""So that the agent can tell who speaks: all that it is given looks like its user's words to it."""


class Agent:
    """A conversation that is run, stopped and talked to. All but `open` is the loop's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._sdk: Conversation | None = None
        self._run_now: asyncio.Task[None] | None = None
        self._threads = Threads()
        asyncio.get_running_loop().set_default_executor(self._threads)
        self._held: deque[Message] = deque()
        self._handing = False
        self._taken: set[str] = set()
        self._transcript = Path()
        self._loop = asyncio.get_running_loop()
        self._keeping: asyncio.TimerHandle | None = None
        self._keep_at = 0.0
        self.telling = Telling(None, time.monotonic)
        self.meter = Meter()
        self.turn = 0
        self.preview = ""
        """The beginning of what the next turn answers."""
        self.interrupted = False
        self.wanted = asyncio.Event()
        """Something was said to it that no run will see unless a new one is begun."""

    @property
    def conversation(self) -> Conversation:
        """The conversation, which is there once it is open."""
        assert self._sdk is not None, "it is not open"
        return self._sdk

    @property
    def is_open(self) -> bool:
        """Whether it can be talked to."""
        return self._sdk is not None

    def open(self, begin: Begin) -> Conversation:
        """Load the SDK and give the agent its task. Takes seconds: for a thread. Raises what the SDK raises."""
        conversation = Conversation.open(begin, self._hear)
        self.telling.model = conversation.model
        self.meter = Meter(conversation.totals)
        self._transcript = Path(begin.state_dir) / f"{conversation.session_id}.jsonl"
        conversation.give(begin.task, _TASK_GIVER)
        self.preview = begin.task[:_PREVIEW]
        return conversation

    def opened(self, conversation: Conversation) -> None:
        """Back in the loop: it takes messages from now on, and has something to answer."""
        self._sdk = conversation
        # Named before there is any: if we are killed in the first turn, the worker knows where it is.
        self._wire.transcript(self._transcript, conversation.session_id, keep=False)
        self.wanted.set()
        self._hand_over()

    # --- talking to it

    def take(self, message: Message) -> None:
        """Give it a message, once, however often it comes: now, or before its model is asked the next time."""
        if message.message in self._taken:
            self._wire.taken(message.message)
        elif not self.knows(message):
            self._held.append(message)
            if not self._runs:
                self._hand_over()

    def knows(self, message: Message) -> bool:
        """Whether it has this already, or it is held for it."""
        return message.message in self._taken or any(held.message == message.message for held in self._held)

    def refuse_held(self, reason: str) -> None:
        """Give up what it could not take so far."""
        while self._held:
            self._wire.refused(self._held.popleft().message, reason)

    @property
    def _runs(self) -> bool:
        return self._run_now is not None and not self._run_now.done()

    def _hand_over(self) -> None:
        # Between a call and its answer a model's protocol has no place for a word of anybody else. And giving a
        # message is heard as well: it is not the time for the next before the first has its receipt.
        while self._sdk is not None and self._held and not self._handing and not self.telling.busy:
            self._handing = True
            try:
                self._give(self._sdk, self._held.popleft())
            finally:
                self._handing = False

    def _give(self, sdk: Conversation, message: Message) -> None:
        if message.expired(time.time()):
            self._wire.refused(message.message, EXPIRED)
            return
        frame = "" if message.content.startswith("[") else _FRAMES.get(message.message_type, "")
        try:
            sdk.give(f"{frame}{message.content}", message.sender_id or message.message_type)
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises, the others are not to suffer for it
            self._wire.refused(message.message, f"{type(error).__name__}: {error}")
            return
        self._taken.add(message.message)
        self._wire.taken(message.message)
        if self.interrupted or not self._runs:
            self.preview = message.content[:_PREVIEW]
            self.wanted.set()

    # --- letting it work

    async def run(self) -> str:
        """Let it work until it comes to an end, or is interrupted; the conversation's status then."""
        self.wanted.clear()
        self.telling.last_error = None
        status = "interrupted"
        while not self.interrupted:
            run = self._run_now = asyncio.get_running_loop().create_task(self.conversation.run())
            await asyncio.wait([run])
            if run.cancelled():  # before it had begun, so that the status is an older one
                status = "interrupted"
                break
            fault, status = run.exception(), self.conversation.status
            if fault is not None and status != "error":
                self._hear({"kind": "ConversationErrorEvent", "code": type(fault).__name__, "detail": str(fault)})
                status = "error"
            if status == "waiting_for_confirmation":
                await self._ask()
            elif status != "idle":
                break
        if self.interrupted:
            await self._calm_down()
        self.conversation.refuse_all("the turn was stopped")
        self._hand_over()
        return status

    async def _calm_down(self) -> None:
        """Wait until the tools have stopped: a run that is cancelled leaves them to themselves.

        They are told again and again. A command that is typed only now has missed the first time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOOL_GRACE):
                while self._threads.busy:
                    self.conversation.stop_short()
                    await asyncio.sleep(_LOOK_AGAIN)

    async def _ask(self) -> None:
        """Ask for leave for all that waits for it, and let go what has it."""
        calls = self.conversation.wanting()
        decisions = await asyncio.gather(*(self._wire.ask(call.tool, call.input, call.summary) for call in calls))
        for call, decision in zip(calls, decisions, strict=True):
            if not decision.granted:
                self.conversation.refuse(call.action_id, decision.reason or "no leave was given")

    def interrupt(self) -> None:
        """Stop what it does now, be it a command, an answer of its model or a question for leave.

        As the SDK's own `interrupt` does, the conversation is paused then, and goes on when it is run again. The SDK's
        own `pause` would wait for the end of the step, which may be a command without one.
        """
        self.interrupted = True
        self._wire.withdraw()
        if self._run_now is not None and not self._run_now.done():
            self._run_now.cancel()
            self.conversation.stop_short()

    def keep_transcript(self) -> None:
        """Write the transcript and say where it is."""
        try:
            self.conversation.save(self._transcript)
        except OSError as error:
            self._wire.event("agent.error", turn=self.turn, error=f"no transcript: {error}", phase="transcript")
        else:
            self._wire.transcript(self._transcript, self.conversation.session_id)

    def _keep_soon(self) -> None:
        if self._keeping is None:
            self._keeping = self._loop.call_at(max(self._loop.time(), self._keep_at), self._keep_meanwhile)

    def _keep_meanwhile(self) -> None:
        """Write the transcript in the middle of a turn: it is what is left if we are killed."""
        began, self._keeping = self._loop.time(), None
        with suppress(OSError, ValueError):  # a file of the SDK's that is being written: then the next time
            self.conversation.save(self._transcript)
        now = self._loop.time()
        self._keep_at = now + max(_KEEP_AGAIN, _KEEP_SHARE * (now - began))

    # --- what it does

    def _hear(self, event: Document) -> None:
        for type, data in self.telling.tell(event):
            self._wire.event(type, turn=self.turn, **data)
        if text := printed(event):
            sys.stdout.write(text)
            sys.stdout.flush()
        if self._sdk is not None:
            self._loop.call_soon_threadsafe(self._keep_soon)
        # A word that came while the model was thinking stands behind its answer: that was no answer to it. We are in
        # the middle of the SDK's step here, so that the model is shown the word the next time it is asked.
        if event["kind"] in _ANSWERS or (event["kind"] == "MessageEvent" and event.get("source") == "agent"):
            self._hand_over()
