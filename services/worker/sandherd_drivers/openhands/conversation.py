"""The one module that knows the OpenHands SDK: a conversation with a model that has a terminal and an editor.

All of it but `open` and `close` belongs to the loop's thread: the SDK's lock knows threads, not tasks, so that a
message is taken at once and never waits, half given, behind a tool that runs for an hour.
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

from sandherd_drivers.commands import Begin
from sandherd_drivers.leave import asks
from sandherd_drivers.openhands import transcripts
from sandherd_drivers.openhands.meter import Totals
from sandherd_drivers.openhands.telling import Document

_SETTINGS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the internet for prices while it is imported
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "HISTFILE": "",  # a shell would leave its history in the work tree, where HOME is
}
_FREE: Final = frozenset({"finish", "think"})
"""Tools that do nothing: the SDK doesn't ask for them either, when they are called alone."""

_SLOW: Final = "ask_human"
_PATIENCE: Final = 8 * 86_400.0
"""In seconds. The SDK gives up a tool of a server after five minutes; a person may take longer, and the worker knows
how long."""
_LONGEST_PLACE: Final = 50
"""The terminal's socket has a name of 56 characters there, and the kernel takes no path of more than 107."""

Hear = Callable[[Document], None]


@dataclass(frozen=True)
class Waiting:
    """A call that waits for leave."""

    action_id: str
    tool: str
    input: dict[str, Any]
    summary: str | None


class Conversation:
    """One conversation of the SDK."""

    def __init__(self, sdk: Any, keep: Path) -> None:
        self._sdk = sdk
        self._keep = keep
        self.session_id = str(sdk.id)
        self.model = str(sdk.agent.llm.model)
        self.version = version("openhands-sdk")

    @classmethod
    def open(cls, begin: Begin, hear: Hear) -> "Conversation":
        """Load the SDK, and make a conversation or go on with one. Takes seconds; not for the loop's thread.

        Raises whatever the SDK raises.
        """
        keep = Path(begin.state_dir) / "conversations"
        _name_model(begin.harness)
        session_id = _session(begin, keep)
        os.environ.update(_SETTINGS)
        if len(begin.state_dir) < _LONGEST_PLACE:
            os.environ["TMUX_TMPDIR"] = begin.state_dir
        with _for_now(HOME=begin.state_dir, LOG_LEVEL="WARNING"):
            sdk = _make(begin, session_id, keep, hear)
        conversation = cls(sdk, transcripts.place(keep, session_id))
        if begin.resume is not None:
            conversation.refuse_all("the session ended before this call did")
        return conversation

    @property
    def status(self) -> str:
        """`idle`, `running`, `paused`, `waiting_for_confirmation`, `finished`, `error` or `stuck`."""
        return str(self._sdk.state.execution_status.value)

    @property
    def totals(self) -> Totals:
        """What it has used from its beginning."""
        metrics = self._sdk.conversation_stats.get_combined_metrics()
        usage = metrics.accumulated_token_usage
        return Totals(
            cost_usd=metrics.accumulated_cost,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )

    def give(self, text: str, sender: str) -> None:
        """Say something to the agent. The first takes a moment: the tools are made then."""
        self._sdk.send_message(text, sender=sender)
        for tool in self._sdk.agent.tools_map.values():
            if tool.name.endswith(_SLOW):
                tool.executor.timeout = _PATIENCE

    async def run(self) -> None:
        """Let the agent work until it has finished or waits for leave. Raises what the SDK raises.

        To be cancelled by `stop_short` and by cancelling its task, both; the agent can then be run again.
        """
        await self._sdk.arun()

    def stop_short(self) -> None:
        """Let the tools that run now know that they are not wanted any more."""
        if (token := self._sdk.cancel_token) is not None:
            token.cancel()
        for tool in self._sdk.agent.tools_map.values():
            if tool.executor is not None:
                tool.executor.interrupt()

    def waiting(self) -> list[Waiting]:
        """The calls that have no answer yet."""
        state = self._sdk.state
        return [
            Waiting(event.id, event.tool_name, _input(event.action), event.summary)
            for event in state.get_unmatched_actions(state.active_branch())
        ]

    def wanting(self) -> list[Waiting]:
        """Those of them that leave is to be asked for."""
        return [call for call in self.waiting() if call.tool not in _FREE]

    def refuse(self, action_id: str, reason: str) -> None:
        """Answer this call with a no when the agent runs again; the others are then let go."""
        with self._sdk.state as state:
            state.block_action(action_id, reason)

    def refuse_all(self, reason: str) -> None:
        """Answer all calls that have no answer with a no, now."""
        if self.waiting():
            self._sdk.reject_pending_actions(reason)

    def save(self, transcript: Path) -> None:
        """Write the transcript as it is now. Raises `OSError`."""
        transcripts.save(self._keep, transcript)

    def close(self) -> None:
        """Close the terminal and the rest of the tools. May take seconds; not for the loop's thread."""
        self._sdk.close()


def _session(begin: Begin, keep: Path) -> str:
    """The session's id: a new one, or that of the session to go on with, which is then laid out for the SDK."""
    if begin.resume is None:
        return str(uuid4())
    session_id = str(uuid4()) if begin.resume.fork else begin.resume.session_id
    transcripts.restore(Path(begin.resume.transcript), keep, session_id)
    return session_id


@contextmanager
def _without_collecting() -> Iterator[None]:
    """All that the SDK makes while it is imported stays: to look through it for garbage is a sixth of that time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _make(begin: Begin, session_id: str, keep: Path, hear: Hear) -> Any:
    with _without_collecting():
        agent = _agent(begin.harness)
        from openhands.sdk.conversation.impl.local_conversation import LocalConversation
        from openhands.sdk.security.confirmation_policy import AlwaysConfirm, NeverConfirm

    sdk = LocalConversation(
        agent=agent,
        workspace=begin.work_dir,
        persistence_dir=keep,
        conversation_id=UUID(session_id),
        callbacks=[lambda event: hear(_document(event))],
        max_iteration_per_run=int(begin.harness.get("max_iterations") or 500),
        visualizer=None,
        delete_on_close=False,
    )
    sdk.set_confirmation_policy(AlwaysConfirm() if asks(begin.harness) else NeverConfirm())
    return sdk


def _agent(harness: Mapping[str, Any]) -> Any:
    """The SDK's own agent without its browser, and with the tools of further servers."""
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


def _name_model(harness: Mapping[str, Any]) -> None:
    """The harness's word goes before the variables', where the SDK looks."""
    for name in ("model", "base_url"):
        if harness.get(name):
            os.environ[f"LLM_{name.upper()}"] = harness[name]
    if not os.environ.get("LLM_MODEL"):
        raise ValueError("no model is named, neither by the harness nor by LLM_MODEL")


def _document(event: Any) -> Document:
    """The event as it is written to disk, and what the model is shown of it."""
    shown = event.to_llm_message().content if hasattr(event, "to_llm_message") else ()
    text = "\n".join(part.text for part in shown if getattr(part, "type", None) == "text")
    return {**event.model_dump(mode="json"), "shown": text}


def _input(action: Any) -> dict[str, Any]:
    return {} if action is None else dict(action.model_dump(mode="json", exclude={"kind"}))


@contextmanager
def _for_now(**variables: str) -> Iterator[None]:
    """The SDK looks at these while it is loaded: it logs little, and its own files are not laid into the work tree.

    What the agent starts later finds them as they were.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
