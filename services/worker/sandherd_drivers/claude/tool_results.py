"""The results of tools as the program reports them: their text, terminal output, and outcome. Pure."""

import json
import re
from typing import Any, Final

from sandherd_drivers.call_results import CallResult

MAX_RESULT_LENGTH: Final = 5000
"""Maximum characters of a published result; the tool's response is not shortened."""
_SHELL: Final = "Bash"
_EXIT_STATUS: Final = re.compile(r"Exit code ([0-9]{1,10})(?:\n|\Z)")
"""How the result of a command that failed begins; the program reports its status nowhere else."""
_TIMED_OUT: Final = re.compile(r"(?:Exit code [0-9]{1,10}\n)?Command timed out after ")
"""How the result of a command begins that was ended because it took too long."""
_INTERRUPTED: Final = "User rejected tool use"
"""The response of a call that an interrupt has stopped: no user can reject one at this program's terminal."""


def call_result(tool: str | None, text: str, response: Any, *, is_error: bool) -> CallResult:
    """How a call ended that was executed. `text` is what the model sees, `response` what the program reports."""
    fields = response if isinstance(response, dict) else {}
    if fields.get("timedOutAfterMs") is not None:
        return CallResult("timed_out")
    if fields.get("interrupted") is True or response == _INTERRUPTED:
        return CallResult("cancelled")
    if not is_error:
        return CallResult("ok", 0 if tool == _SHELL and _has_succeeded(fields) else None)
    if tool != _SHELL:
        return CallResult("failed")
    if _TIMED_OUT.match(text):
        return CallResult("timed_out")
    status = _EXIT_STATUS.match(text)
    return CallResult("failed", int(status[1]) if status else None)


def _has_succeeded(response: dict[str, Any]) -> bool:
    """Whether the command ended with status 0. For some, such as `grep`, another status is not an error."""
    return (
        "stdout" in response and not response.get("backgroundTaskId") and not response.get("returnCodeInterpretation")
    )


def result_text(content: Any) -> str:
    """A result as the model sees it, as one text."""
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
