"""One session of Claude Code: the program, the messages for it, and its end."""

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

from sandherd_drivers.claude.event_mapper import EventLine
from sandherd_drivers.claude.message_deadlines import MessageDeadlines
from sandherd_drivers.claude.options import options
from sandherd_drivers.claude.outcomes import exit_signal
from sandherd_drivers.claude.permissions import ToolPermissions
from sandherd_drivers.claude.transcripts import expected_path, read_totals, restore
from sandherd_drivers.claude.turn_tracker import TurnTracker
from sandherd_drivers.claude.usage import SessionUsage
from sandherd_drivers.commands import EXPIRED, Begin, Message
from sandherd_drivers.wire import Wire

_SENDER_PREFIXES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""The mark for the sender, by type of message, because the agent gets every message as one of its user."""
_CONFIG_DIR: Final = "claude"
_TURN_STOP_SECONDS: Final = 4.0
"""How long a turn may take to stop before the program is ended, in seconds."""
_PROGRAM_EXIT_SECONDS: Final = 20.0
"""How long the program may take to end, in seconds; otherwise the worker kills it."""
_PARSE_ERROR: Final = "MessageParseError"
"""The class of the error after which reading can continue; the SDK does not export it."""


class ClaudeSession:
    """One session, from `open` to `close`. `ended` is set if it can't start, or if the program ends by itself."""

    def __init__(self, wire: Wire) -> None:
        self.ended = asyncio.Event()
        self._wire = wire
        wire.derive_model_calls()
        self._client: Any = None
        self._tracker: TurnTracker | None = None
        self._reader_task: asyncio.Task[None] | None = None

    async def open(self, begin: Begin) -> None:
        """Start the program and give it the task. A failure is reported as the task's result."""
        try:
            client, tracker = await self._connect(begin)
        except Exception as error:  # noqa: BLE001  # without a session, no agent can start
            signal_number = exit_signal(error)
            self._wire.report_result(
                error_type="signal" if signal_number else "start", error=str(error), signal=signal_number, turns=0
            )
            self.ended.set()
            return
        self._client, self._tracker = client, tracker
        server_info = await client.get_server_info() or {}
        version = server_info.get("claude_code_version")
        # Reported before the file exists: if the driver is killed in the first turn, the worker knows the path.
        transcript = expected_path(Path(begin.state_dir) / _CONFIG_DIR, begin.work_dir, tracker.session)
        self._wire.report_transcript(transcript, tracker.session, keep=False)
        self._wire.report_ready(session_id=tracker.session, model=begin.harness.get("model"), version=version)
        self._reader_task = asyncio.create_task(self._read_messages(client, tracker))
        await self._send(None, begin.task, begin.origin)

    async def deliver(self, message: Message) -> None:
        """Pass a message to the agent, in the running turn or as a new turn. A redelivered message is not repeated."""
        if self._tracker is None or self.ended.is_set():
            self._wire.report_refused(message.message, "the agent has ended")
            return
        if not self._tracker.should_deliver(message.message):
            return
        if message.message_type == "interrupt":
            await self.interrupt()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TURN_STOP_SECONDS):
                await self._tracker.can_start_turn.wait()
        if message.is_expired(time.time()):
            self._wire.report_refused(message.message, EXPIRED)
            return
        content = f"{_SENDER_PREFIXES.get(message.message_type, '')}{message.content}"
        uuid = await self._send(message.message, content, message.origin)
        if message.expires_at is not None:
            MessageDeadlines(self._client, self._tracker).watch(uuid, message.expires_at)

    async def interrupt(self) -> None:
        """Stop the turn, also one that is about to begin, and keep the session."""
        self._wire.deny_pending_approvals()
        tracker = self._tracker
        if tracker is None or not tracker.is_busy:
            self._wire.report_turn(tracker.turn if tracker else 0, "idle")
            return
        tracker.stop_turns(self._stop_turn)
        await self._stop_turn()

    async def close(self) -> None:
        """Stop the program, and report its transcript, so that the worker stores it."""
        tracker = self._tracker
        if tracker is None:
            return
        tracker.ending = True
        if not self.ended.is_set() and tracker.is_busy:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wire.shutdown_timeout(_TURN_STOP_SECONDS)):
                    await self.interrupt()
                    await tracker.idle.wait()
        tracker.refuse_waiting("the agent is ending")
        if tracker.is_busy:
            await tracker.report_transcript()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wire.shutdown_timeout(_PROGRAM_EXIT_SECONDS)):
                await self._client.disconnect()
        await tracker.report_transcript()
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)
        if tracker.is_busy:
            tracker.abort_turn()
        tracker.report_result("stopped", "it was stopped", "stopped")

    async def _connect(self, begin: Begin) -> tuple[Any, TurnTracker]:
        config = Path(begin.state_dir) / _CONFIG_DIR
        config.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The SDK and its program are installed together by one lock file: a version check would start the program
        # twice.
        os.environ.setdefault("CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK", "1")
        (config / "tmp").mkdir(exist_ok=True)
        session, usage, cost_before = str(uuid4()), SessionUsage(), 0.0
        if begin.resume is not None:
            transcript = restore(begin.resume.transcript, begin.resume.session_id, config, begin.work_dir)
            cost_before, models = read_totals(transcript)
            usage = SessionUsage.resumed(cost_before, models)
            session = session if begin.resume.fork else begin.resume.session_id
        permissions = ToolPermissions(self._wire, begin)
        sdk_options = options(begin, session, os.environ, cost_before) | permissions.options()
        # The SDK warns that tools which are allowed as a whole need no approval. This is intended.
        warnings.simplefilter("ignore", CanUseToolShadowedWarning)
        client = ClaudeSDKClient(ClaudeAgentOptions(**sdk_options, stderr=_write_stderr))
        await client.connect()
        return client, TurnTracker(self._wire, session, config, usage, permissions.denials)

    async def _send(self, message: str | None, content: str, origin: str | None) -> str:
        assert self._tracker is not None
        uuid = str(uuid4())
        self._tracker.register(uuid, message, content, origin)
        with suppress(ClaudeSDKError):  # the program has ended; the reader reports that, and refuses the message
            await self._client.query(_prompt(uuid, content))
        return uuid

    async def _stop_turn(self) -> None:
        with suppress(Exception):  # the SDK raises a plain `Exception` if there is no reply
            await self._client.interrupt()

    async def _read_messages(self, client: Any, tracker: TurnTracker) -> None:
        """Handle the agent's messages until the stream ends, which happens by itself only after a failure."""
        failure: Exception | None = None
        while True:
            try:
                async for message in client.receive_messages():
                    await _handle_message(tracker, message)
                break
            except Exception as error:  # noqa: BLE001  # any other error that ends the stream ends the session
                if type(error).__name__ != _PARSE_ERROR:
                    failure = error
                    break
                tracker.publish([_invalid_message_event(error)])
        if not tracker.ending:
            self._report_failure(tracker, failure)

    def _report_failure(self, tracker: TurnTracker, error: Exception | None) -> None:
        """Report that the program has ended by itself."""
        signal_number = exit_signal(error)
        text = f"the agent's program failed: {error or 'it has ended'}"
        tracker.abort_turn()
        fields = {"error": text, "error_type": _stream_error_type(error), "final_output_length": 0}
        tracker.publish([("agent.stream_error", fields)])
        tracker.refuse_waiting("the agent has ended")
        error_type, stop_reason = ("signal", "killed") if signal_number else ("exit_status", "broke_off")
        tracker.report_result(error_type, text, stop_reason, signal=signal_number)
        self.ended.set()


def _stream_error_type(error: Exception | None) -> str:
    if exit_signal(error) == SIGKILL:
        return "sigkill"
    return "command_failed" if isinstance(error, ProcessError) else "unknown"


async def _handle_message(tracker: TurnTracker, message: Any) -> None:
    """Handle a message; one in an unexpected format becomes an error event, and the session continues."""
    try:
        await tracker.handle(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        tracker.publish([_invalid_message_event(error)])


def _invalid_message_event(error: Exception) -> EventLine:
    text = f"invalid message from the agent: {type(error).__name__}: {error}"
    return "agent.error", {"error": text, "phase": "sdk"}


async def _prompt(uuid: str, content: str) -> AsyncIterator[dict[str, Any]]:
    """A message with an id, by which the agent acknowledges it."""
    message: dict[str, Any] = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "uuid": uuid,
    }
    # A text that begins like a command of the program, such as `/clear`, is marked as text.
    yield {**message, "client_composed": True} if content.lstrip().startswith("/") else message


def _write_stderr(line: str) -> None:
    """Print a line of the program's standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
