"""What the SDK says, as events: one for each block. Nothing here knows the SDK; its objects are told by their names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from sandherd_drivers.claude.tool_results import MOST_SHOWN, result_text

Line = tuple[str, dict[str, Any]]
"""An event: its type and its data, still without its turn."""

SUBAGENT: Final = "Task"
SKILL: Final = "Skill"
_ALSO_CALLED: Final = {"Agent": SUBAGENT}
_NOISE: Final = frozenset({"thinking_tokens", "session_state_changed"})
"""System messages that come many times a second, or that are said otherwise."""
_INTRODUCED: Final = (
    "subtype", "cwd", "model", "permissionMode", "claude_code_version", "tools", "mcp_servers", "agents", "skills"
)  # fmt: skip


def tool_name(name: str) -> str:
    """One name for a tool: hooks and requests call some otherwise than blocks do."""
    return _ALSO_CALLED.get(name, name)


@dataclass
class Call:
    """A tool call that has no result yet."""

    tool: str
    input: dict[str, Any]
    began: float


@dataclass
class Answer:
    """One message of the model, whose blocks come one by one."""

    id: str | None
    model: str | None
    blocks: int = 0
    stop_reason: str | None = None


@dataclass
class Telling:
    """Tells what happens in one session; it remembers the calls that wait for their results."""

    now: Callable[[], float] = monotonic
    model: str | None = None
    last_written: str | None = None
    """The name of the last thing that must be in the transcript."""
    _calls: dict[str, Call] = field(default_factory=dict)
    _answer: Answer | None = None
    _introduced: bool = False

    def assistant(self, message: Any) -> Iterator[Line]:
        """Blocks of the model's message; or that there will be none, if its server answered with an error."""
        if message.error:
            yield "agent.error", {"error": result_text(_texts(message.content)) or message.error, "phase": "model"}
            return
        yield from self._next_answer(message)
        if message.parent_tool_use_id is None:  # a sub-agent has a transcript of its own
            self.last_written = message.uuid or self.last_written
        for block in message.content:
            yield from self._block(block, message.parent_tool_use_id)

    def user(self, message: Any) -> Iterator[Line]:
        """What was said to the model: results of tools, and words."""
        yield from self.answered()
        blocks = [] if isinstance(message.content, str) else message.content
        for block in blocks:
            if type(block).__name__ == "ToolResultBlock":
                yield from self._result(block, message.tool_use_result)
        text = message.content if isinstance(message.content, str) else result_text(_texts(blocks))
        # What a sub-agent is told was said when it was called; and the program's own notices come as such, too.
        if text and message.origin is None and message.parent_tool_use_id is None:
            yield "agent.user_message", {"content": text, "content_length": len(text)}

    def system(self, message: Any) -> Iterator[Line]:
        """A notice of the program; of what it says at each turn's beginning the first is enough."""
        data: Mapping[str, Any] = message.data
        subtype = message.subtype
        if subtype == "init":
            self.model = data.get("model") or self.model
            if not self._introduced:
                self._introduced = True
                yield "agent.system_message", {"metadata": {key: data[key] for key in _INTRODUCED if key in data}}
            return
        if subtype == "task_notification":
            yield from self._background_over(message)
        if subtype not in _NOISE:
            told = {key: value for key, value in data.items() if key not in {"type", "uuid", "session_id"}}
            yield "agent.system_message", {"metadata": told}

    def answered(self, stop_reason: str | None = None) -> Iterator[Line]:
        """The model's message is whole, if there was one."""
        answer, self._answer = self._answer, None
        if answer is not None:
            reason = answer.stop_reason or stop_reason
            yield (
                "agent.assistant_message",
                {"model": answer.model, "stop_reason": reason, "block_count": answer.blocks},
            )

    def _next_answer(self, message: Any) -> Iterator[Line]:
        if self._answer is None or self._answer.id != message.message_id:
            yield from self.answered()
            self._answer = Answer(message.message_id, message.model)
        self._answer.blocks += len(message.content)

    def _block(self, block: Any, parent: str | None) -> Iterator[Line]:
        kind = type(block).__name__
        if kind == "TextBlock":
            yield "agent.message", {"content": block.text, "content_length": len(block.text)}
        elif kind == "ThinkingBlock":
            whose = "thinking" if parent is None else "subagent"
            yield "agent.thinking", {"content": block.thinking, "thinking_type": whose}
        elif kind in {"ToolUseBlock", "ServerToolUseBlock"}:
            yield self._call(block, parent)
        elif kind in {"ToolResultBlock", "ServerToolResultBlock"}:
            yield from self._result(block, None)

    def _call(self, block: Any, parent: str | None) -> Line:
        """A tool is called: an event of its own kind for a sub-agent and for a skill."""
        tool, given = tool_name(block.name), dict(block.input)
        self._calls[block.id] = Call(tool, given, self.now())
        if self._answer is not None:
            self._answer.stop_reason = "tool_use"
        if tool == SUBAGENT:
            return "agent.subagent_invoked", {
                "tool_use_id": block.id,
                "subagent_type": str(given.get("subagent_type") or "general-purpose"),
                "subagent_description": given.get("description"),
                "subagent_prompt": given.get("prompt"),
            }
        if tool == SKILL:
            return "agent.skill_invoked", {"tool_use_id": block.id, "skill_name": _skill(given)}
        subtype = None if parent is None else "subagent"
        return "agent.tool_use", {"tool": tool, "tool_use_id": block.id, "input": given, "event_subtype": subtype}

    def _result(self, block: Any, response: Any) -> Iterator[Line]:
        """A tool has answered. A sub-agent that only was started is still at work, so nothing is said of it yet."""
        if isinstance(response, dict) and (response.get("isAsync") or response.get("status") == "async_launched"):
            return
        call = self._calls.pop(block.tool_use_id, None)
        text = result_text(block.content)
        if call is not None:
            yield self._completed(block.tool_use_id, call, text if response is None else response)
        yield (
            "agent.tool_result",
            {
                "tool_use_id": block.tool_use_id,
                "result": text[:MOST_SHOWN],
                "result_truncated": len(text) > MOST_SHOWN,
                "result_full_length": len(text),
                "is_error": bool(getattr(block, "is_error", False)),
            },
        )

    def _completed(self, name: str, call: Call, response: Any) -> Line:
        took = (self.now() - call.began) * 1000
        if call.tool == SUBAGENT:
            usage = response.get("usage") if isinstance(response, dict) else None
            return _subagent_completed(name, call, response, usage, took)
        if call.tool == SKILL:
            return "agent.skill_completed", {"tool_use_id": name, "skill_name": _skill(call.input)}
        return "agent.tool_completed", {
            "tool": call.tool,
            "tool_use_id": name,
            "tool_input": call.input,
            "tool_response": response,
            "duration_ms": took,
        }

    def _background_over(self, message: Any) -> Iterator[Line]:
        """A sub-agent in the background has ended; it may tell so again later, which ends nothing."""
        call = self._calls.get(message.tool_use_id or "")
        if call is not None and call.tool == SUBAGENT:
            del self._calls[message.tool_use_id]
            took = (self.now() - call.began) * 1000
            yield _subagent_completed(message.tool_use_id, call, message.summary, message.usage, took)


def _subagent_completed(name: str, call: Call, result: Any, usage: Any, took: float) -> Line:
    return "agent.subagent_completed", {
        "tool_use_id": name,
        "subagent_type": call.input.get("subagent_type"),
        "subagent_description": call.input.get("description"),
        "subagent_result": result,
        "subagent_usage": dict(usage or {}),
        "subagent_duration_ms": took,
    }


def _skill(given: Mapping[str, Any]) -> str:
    return str(given.get("skill") or given.get("command") or given.get("name") or "")


def _texts(content: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": block.text} for block in content if type(block).__name__ == "TextBlock"]
