"""The results of tools as Claude Code (the program) reports them: their text, terminal output and outcome. Pure."""

import json
import re
from typing import Any, Final

from sandherd_drivers.call_results import CallResult

MAX_RESULT_LENGTH: Final = 5000
"""Maximum characters of `result` in `agent.tool_result`. `agent.tool_completed` has the whole response of the tool."""
_SHELL_TOOL: Final = "Bash"
_EXIT_STATUS_LINE: Final = re.compile(r"Exit code ([0-9]{1,10})(?:\n|\Z)")
"""The first line of a failed command's result. The program reports the exit status nowhere else."""
_TIMEOUT_LINE: Final = re.compile(r"(?:Exit code [0-9]{1,10}\n)?Command timed out after ")
"""How the result begins if the command was ended because it took too long."""
_INTERRUPTED_RESPONSE: Final = "User rejected tool use"
"""The response of a call that was interrupted. No user can reject a call here: the program has no terminal."""


def call_result(tool: str | None, text: str, response: Any, *, is_error: bool) -> CallResult:
    """The outcome of a call that was executed.

    `text` is the result that the model sees. `response` is the structured result that the program reports with it.
    """
    fields = response if isinstance(response, dict) else {}
    if fields.get("timedOutAfterMs") is not None:
        return CallResult("timed_out")
    if fields.get("interrupted") is True or response == _INTERRUPTED_RESPONSE:
        return CallResult("cancelled")
    if not is_error:
        return CallResult("ok", 0 if tool == _SHELL_TOOL and _has_succeeded(fields) else None)
    if tool != _SHELL_TOOL:
        return CallResult("failed")
    if _TIMEOUT_LINE.match(text):
        return CallResult("timed_out")
    status = _EXIT_STATUS_LINE.match(text)
    return CallResult("failed", int(status[1]) if status else None)


def _has_succeeded(response: dict[str, Any]) -> bool:
    """Whether the exit status of a command without an error is known to be 0.

    It is not if the command runs in the background, or if the program explains its status: `grep` without a match
    ends with 1.
    """
    return (
        "stdout" in response and not response.get("backgroundTaskId") and not response.get("returnCodeInterpretation")
    )


def result_text(content: Any) -> str:
    """The result that the model sees, as one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def terminal_output(response: Any) -> str:
    """The output of a command; empty for the response of any other tool."""
    if not isinstance(response, dict) or "stdout" not in response:
        return ""
    outputs = (str(response.get("stdout") or ""), str(response.get("stderr") or ""))
    return "".join(f"{output.rstrip()}\n" for output in outputs if output.strip())


def _part_text(part: Any) -> str:
    if isinstance(part, dict):
        return str(part["text"]) if part.get("type") == "text" else f"[{part.get('type', 'something')}]"
    return str(part)
