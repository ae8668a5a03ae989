"""The only module that uses the OpenHands SDK: a conversation with a model that has a terminal and an editor.

Call all methods but `open` and `close` in the event loop's thread. A thread, not an asyncio task, holds the SDK's lock.
So `send` in that thread never waits for a tool that runs for an hour.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from sandherd_drivers.approval_policy import needs_approval
from sandherd_drivers.commands import Begin
from sandherd_drivers.openhands import transcripts
from sandherd_drivers.openhands.event_mapper import Document
from sandherd_drivers.openhands.usage import ConversationTotals

_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads prices while it is imported
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "HISTFILE": "",  # a shell would write its history into the work tree, where HOME is
}
_HARMLESS_TOOLS: Final = frozenset({"finish", "think"})
"""Tools without effect: the SDK needs no confirmation for them either, if they are called alone."""

_QUESTION_TOOL: Final = "ask_human"
_TOOL_TIMEOUT: Final = 8 * 86_400.0
"""The timeout of `ask_human`, in seconds. The SDK's default of five minutes is too short for a user's answer, and the
worker applies the actual limit.
"""
_MAX_SOCKET_DIR_LENGTH: Final = 50
"""The name of the terminal's socket in it has 56 characters, and the kernel limits the path to 107 characters."""

EventHandler = Callable[[Document], None]


@dataclass(frozen=True)
class PendingApproval:
    """A call that waits for approval."""

    action_id: str
    tool: str
    input: dict[str, Any]
    summary: str | None


class OpenHandsConversation:
    """One conversation of the SDK."""

    def __init__(self, sdk: Any, directory: Path) -> None:
        self._sdk = sdk
        self._directory = directory
        self.session_id = str(sdk.id)
        self.model = str(sdk.agent.llm.model)
        self.version = version("openhands-sdk")

    @classmethod
    def open(cls, begin: Begin, handle_event: EventHandler) -> "OpenHandsConversation":
        """Load the SDK, and create or resume a conversation. Takes seconds; not for the loop's thread.

        Raises what the SDK raises.
        """
        directory = Path(begin.state_dir) / "conversations"
        _set_model_variables(begin.harness)
        session_id = _prepare_session(begin, directory)
        os.environ.update(_ENVIRONMENT)
        if len(begin.state_dir) < _MAX_SOCKET_DIR_LENGTH:
            os.environ["TMUX_TMPDIR"] = begin.state_dir
        with _temporary_environment(HOME=begin.state_dir, LOG_LEVEL="WARNING"):
            sdk = _create(begin, session_id, directory, handle_event)
        conversation = cls(sdk, transcripts.conversation_dir(directory, session_id))
        if begin.resume is not None:
            conversation.refuse_pending("the session ended before this call did")
        return conversation

    @property
    def status(self) -> str:
        """`idle`, `running`, `paused`, `waiting_for_confirmation`, `finished`, `error` or `stuck`."""
        return str(self._sdk.state.execution_status.value)

    @property
    def totals(self) -> ConversationTotals:
        """The conversation's usage since its beginning."""
        metrics = self._sdk.conversation_stats.get_combined_metrics()
        usage = metrics.accumulated_token_usage
        return ConversationTotals(
            cost_usd=metrics.accumulated_cost,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )

    def send(self, text: str, sender: str) -> None:
        """Pass the agent a message. The first call takes longer, since it creates the tools."""
        self._sdk.send_message(text, sender=sender)
        for tool in self._sdk.agent.tools_map.values():
            if tool.name.endswith(_QUESTION_TOOL):
                tool.executor.timeout = _TOOL_TIMEOUT

    async def run(self) -> None:
        """Run the agent until it has finished or waits for approval. Raises what the SDK raises.

        To stop it, cancel its task and call `interrupt_tools`. The agent can then be run again.
        """
        await self._sdk.arun()

    def interrupt_tools(self) -> None:
        """Request the stop of the running tools."""
        if (token := self._sdk.cancel_token) is not None:
            token.cancel()
        for tool in self._sdk.agent.tools_map.values():
            if tool.executor is not None:
                tool.executor.interrupt()

    def pending_calls(self) -> list[PendingApproval]:
        """The calls that have no result yet."""
        state = self._sdk.state
        return [
            PendingApproval(event.id, event.tool_name, _arguments(event.action), event.summary)
            for event in state.get_unmatched_actions(state.active_branch())
        ]

    def calls_needing_approval(self) -> list[PendingApproval]:
        """The pending calls that need approval."""
        return [call for call in self.pending_calls() if call.tool not in _HARMLESS_TOOLS]

    def refuse(self, action_id: str, reason: str) -> None:
        """Deny this call when the agent runs again; the other calls are then run."""
        with self._sdk.state as state:
            state.block_action(action_id, reason)

    def refuse_pending(self, reason: str) -> None:
        """Deny all calls that have no result, now."""
        if self.pending_calls():
            self._sdk.reject_pending_actions(reason)

    def save(self, transcript: Path) -> None:
        """Write the transcript as it is now. Raises `OSError`."""
        transcripts.save(self._directory, transcript)

    def close(self) -> None:
        """Close the terminal and the other tools. May take seconds; not for the loop's thread."""
        self._sdk.close()


def _prepare_session(begin: Begin, directory: Path) -> str:
    """The session's id: a new one, or that of the session to resume, which is then restored for the SDK."""
    if begin.resume is None:
        return str(uuid4())
    session_id = str(uuid4()) if begin.resume.fork else begin.resume.session_id
    transcripts.restore(Path(begin.resume.transcript), directory, session_id)
    return session_id


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """The SDK's import takes a sixth longer with garbage collection, which would find nothing: all its objects stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _create(begin: Begin, session_id: str, directory: Path, handle_event: EventHandler) -> Any:
    with _garbage_collection_paused():
        agent = _agent(begin.harness)
        from openhands.sdk.conversation.impl.local_conversation import LocalConversation
        from openhands.sdk.security.confirmation_policy import AlwaysConfirm, NeverConfirm

    sdk = LocalConversation(
        agent=agent,
        workspace=begin.work_dir,
        persistence_dir=directory,
        conversation_id=UUID(session_id),
        callbacks=[lambda event: handle_event(_document(event))],
        max_iteration_per_run=int(begin.harness.get("max_iterations") or 500),
        visualizer=None,
        delete_on_close=False,
    )
    sdk.set_confirmation_policy(AlwaysConfirm() if needs_approval(begin.harness) else NeverConfirm())
    return sdk


def _agent(harness: Mapping[str, Any]) -> Any:
    """The SDK's default agent without its browser, and with the tools of MCP servers."""
    from openhands.sdk import LLM, Agent
    from openhands.tools.preset.default import get_default_condenser, get_default_tools

    llm = LLM.load_from_env()
    return Agent(
        llm=llm,
        tools=get_default_tools(enable_browser=False),
        condenser=get_default_condenser(llm.model_copy(update={"usage_id": "condenser"})),
        system_prompt_kwargs={"cli_mode": True},
        mcp_config=dict(harness.get("mcp_servers") or {}),
    )


def _set_model_variables(harness: Mapping[str, Any]) -> None:
    """Set the variables that the SDK reads to the harness's settings. Raises `ValueError` if no model is set."""
    for name in ("model", "base_url"):
        if harness.get(name):
            os.environ[f"LLM_{name.upper()}"] = harness[name]
    if not os.environ.get("LLM_MODEL"):
        raise ValueError("no model is set, neither by the harness nor by LLM_MODEL")


def _document(event: Any) -> Document:
    """The event as it is written to disk, and its text as the model sees it."""
    shown = event.to_llm_message().content if hasattr(event, "to_llm_message") else ()
    text = "\n".join(part.text for part in shown if getattr(part, "type", None) == "text")
    return {**event.model_dump(mode="json"), "shown": text}


def _arguments(action: Any) -> dict[str, Any]:
    return {} if action is None else dict(action.model_dump(mode="json", exclude={"kind"}))


@contextmanager
def _temporary_environment(**variables: str) -> Iterator[None]:
    """Set variables that the SDK reads while it is loaded, so that it logs little, and nothing in the work tree.

    Processes that the agent starts later get the original values.
    """
    original = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in original.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
