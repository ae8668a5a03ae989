"""One session of Claude Code: the program, what it is given, and how it ends."""

import asyncio
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final
from uuid import uuid4

from claude_agent_sdk import (
    CanUseToolShadowedWarning,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    ProcessError,
)

from sandherd_drivers.claude.asking import Asking
from sandherd_drivers.claude.deadlines import Deadlines
from sandherd_drivers.claude.hearing import Hearing
from sandherd_drivers.claude.options import options
from sandherd_drivers.claude.outcomes import signal_of
from sandherd_drivers.claude.said import Line
from sandherd_drivers.claude.spending import Spending
from sandherd_drivers.claude.transcripts import expected, lay, spent
from sandherd_drivers.commands import EXPIRED, Begin, Message
from sandherd_drivers.wire import Wire

_FRAMES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""So that the agent can tell who speaks: all that it is given looks like its user's words to it."""
_CONFIG: Final = "claude"
_STOPPING: Final = 4.0
"""How long a turn may take to be stopped before the program ends, in seconds."""
_LEAVING: Final = 20.0
"""How long the program may take to end, in seconds; the worker ends it by force if it has not."""
_NOT_UNDERSTOOD: Final = "MessageParseError"
"""The error after which the next message can be read; the SDK keeps its class to itself."""


class Session:
    """Begins with `open`; over when `gone` is set, or with `close`."""

    def __init__(self, wire: Wire) -> None:
        self.gone = asyncio.Event()
        self._wire = wire
        wire.follow_model()
        self._client: Any = None
        self._hearing: Hearing | None = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self, begin: Begin) -> None:
        """Start the program and give it the task. A failure is said, as the outcome."""
        try:
            client, hearing = await self._connect(begin)
        except Exception as error:  # noqa: BLE001  # whatever it is, there is no agent
            killed = signal_of(error)
            self._wire.result(error_type="signal" if killed else "start", error=str(error), signal=killed, turns=0)
            self.gone.set()
            return
        self._client, self._hearing = client, hearing
        about = await client.get_server_info() or {}
        version = about.get("claude_code_version")
        # Named before there is any: if we are killed in the first turn, the worker knows where it is.
        transcript = expected(Path(begin.state_dir) / _CONFIG, begin.work_dir, hearing.session)
        self._wire.transcript(transcript, hearing.session, keep=False)
        self._wire.ready(session_id=hearing.session, model=begin.harness.get("model"), version=version)
        self._listening = asyncio.create_task(self._listen(client, hearing))
        await self._give(None, begin.task)

    async def take(self, message: Message) -> None:
        """Give the agent a message, into the turn that runs or as one of its own; once, however often it comes."""
        if self._hearing is None or self.gone.is_set():
            self._wire.refused(message.message, "the agent has ended")
            return
        if not self._hearing.wants(message.message):
            return
        if message.message_type == "interrupt":
            await self.interrupt()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOPPING):
                await self._hearing.goes_on.wait()
        if message.expired(time.time()):
            self._wire.refused(message.message, EXPIRED)
            return
        uuid = await self._give(message.message, f"{_FRAMES.get(message.message_type, '')}{message.content}")
        if message.expires_at is not None:
            Deadlines(self._client, self._hearing).watch(uuid, message.expires_at)

    async def interrupt(self) -> None:
        """Stop the turn, also one that is about to begin, and keep the session."""
        self._wire.withdraw()
        hearing = self._hearing
        if hearing is None or not hearing.busy:
            self._wire.turn(hearing.turn if hearing else 0, "idle")
            return
        hearing.stop(self._stop_turn)
        await self._stop_turn()

    async def close(self) -> None:
        """End the program in order, and have its transcript kept."""
        hearing = self._hearing
        if hearing is None:
            return
        hearing.ending = True
        if not self.gone.is_set() and hearing.busy:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wire.within(_STOPPING)):
                    await self.interrupt()
                    await hearing.idle.wait()
        hearing.refuse_waiting("the agent is ending")
        if hearing.busy:
            await hearing.keep()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wire.within(_LEAVING)):
                await self._client.disconnect()
        await hearing.keep()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if hearing.busy:
            hearing.broke_off()
        hearing.conclude("stopped", "it was stopped", "stopped")

    async def _connect(self, begin: Begin) -> tuple[Any, Hearing]:
        config = Path(begin.state_dir) / _CONFIG
        config.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The SDK and its program come together, of one lock: to ask that for its version would start it twice.
        os.environ.setdefault("CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK", "1")
        (config / "tmp").mkdir(exist_ok=True)
        session, spending, before = str(uuid4()), Spending(), 0.0
        if begin.resume is not None:
            laid = lay(begin.resume.transcript, begin.resume.session_id, config, begin.work_dir)
            before, models = spent(laid)
            spending = Spending.since(before, models)
            session = session if begin.resume.fork else begin.resume.session_id
        told = options(begin, session, os.environ, before) | Asking(self._wire, begin).options()
        # A tool that is allowed as a whole is not asked about: so it is meant.
        warnings.simplefilter("ignore", CanUseToolShadowedWarning)
        client = ClaudeSDKClient(ClaudeAgentOptions(**told, stderr=_complain))
        await client.connect()
        return client, Hearing(self._wire, session, config, spending)

    async def _give(self, message: str | None, content: str) -> str:
        assert self._hearing is not None
        uuid = str(uuid4())
        self._hearing.expect(uuid, message, content)
        with suppress(ClaudeSDKError):  # it has ended; whoever listens to it says so, and refuses the message
            await self._client.query(_prompt(uuid, content))
        return uuid

    async def _stop_turn(self) -> None:
        with suppress(Exception):  # the SDK says by a bare one that there was no answer
            await self._client.interrupt()

    async def _listen(self, client: Any, hearing: Hearing) -> None:
        """Hear the agent to its end, which only comes by itself if something broke."""
        ended: Exception | None = None
        while True:
            try:
                async for message in client.receive_messages():
                    await _hear(hearing, message)
                break
            except Exception as error:  # noqa: BLE001  # whatever else ends the stream ends the session
                if type(error).__name__ != _NOT_UNDERSTOOD:
                    ended = error
                    break
                hearing.say([_not_understood(error)])
        if not hearing.ending:
            self._broke(hearing, ended)

    def _broke(self, hearing: Hearing, error: Exception | None) -> None:
        """The program has ended by itself."""
        killed = signal_of(error)
        kind = "sigkill" if killed == SIGKILL else "command_failed" if isinstance(error, ProcessError) else "unknown"
        text = f"the agent's program broke off: {error or 'it has ended'}"
        hearing.broke_off()
        hearing.say([("agent.stream_error", {"error": text, "error_type": kind, "final_output_length": 0})])
        hearing.refuse_waiting("the agent has ended")
        error_type, stop_reason = ("signal", "killed") if killed else ("exit_status", "broke_off")
        hearing.conclude(error_type, text, stop_reason, signal=killed)
        self.gone.set()


async def _hear(hearing: Hearing, message: Any) -> None:
    """A message that has another form than it should is no reason to end."""
    try:
        await hearing.hear(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hearing.say([_not_understood(error)])


def _not_understood(error: Exception) -> Line:
    text = f"a message of the agent was not understood: {type(error).__name__}: {error}"
    return "agent.error", {"error": text, "phase": "sdk"}


async def _prompt(uuid: str, content: str) -> AsyncIterator[dict[str, Any]]:
    """A message with a name, by which the agent says that it has it."""
    message: dict[str, Any] = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "uuid": uuid,
    }
    # What looks like a command of the program's own, such as `/clear`, is marked as text.
    yield {**message, "client_composed": True} if content.lstrip().startswith("/") else message


def _complain(line: str) -> None:
    """What the program writes to its standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
