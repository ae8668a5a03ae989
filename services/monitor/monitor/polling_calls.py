"""Recognises polls: calls that wait for something or check its progress. Pure.

Repeating a poll for some time is not a loop.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_MAX_COMMAND_LENGTH: Final = 1024
_POLLING_TOOL: Final = re.compile(
    r"(?:^|_|\b)(?:wait|sleep|poll|watch|tail|status|(?:bash|task|agent|process|terminal|command|shell)_?output)(?:_|\b)"
    r"|^(?:BashOutput|TaskOutput|AgentOutput|Monitor|Wait|Sleep)",
)
_COMMAND_FIELDS: Final = ("command", "cmd")
_PATH_FIELDS: Final = ("file_path", "path")
_OUTPUT_FILE: Final = re.compile(r"\.(?:log|out|output|pid|status|progress)$")
_COMMAND_START: Final = r"(?:^|[;&|(]|\b(?:do|then|sudo|timeout [0-9smh.]+|env))\s*"
_POLLING_COMMAND: Final = re.compile(
    _COMMAND_START
    + r"(?:(?:sleep|wait|watch|tail|ps|pgrep|jobs|top|squeue|journalctl|nvidia-smi|pstree|ss|netstat|lsof|nc)\b"
    r"|kubectl (?:get|logs|rollout|wait|describe|top)\b|docker (?:ps|logs|inspect|wait|stats|compose (?:ps|logs))\b"
    r"|gh (?:run|pr checks|pr view|workflow)\b|systemctl (?:status|is-active)\b"
    r"|(?:curl|wget|http)\b[^\n;|]{0,200}(?:health|status|ready|ping|alive|progress)"
    r"|(?:cat|head|wc|less|ls|stat|grep)\b[^\n;|]{0,200}\.(?:log|out|output|pid|status|progress)\b"
    r"|(?!git\b|hg\b|svn\b)[\w./-]{1,64}(?: [\w./-]{1,64}){0,3} status\b)"
)


def is_poll(tool: str, tool_input: Any) -> bool:
    """Whether a call waits for something, or reads its progress."""
    if _POLLING_TOOL.search(tool[:80]):
        return True
    if not isinstance(tool_input, Mapping):
        return False
    if tool_input.get("chars") == "" or any(_is_polling_command(tool_input.get(name)) for name in _COMMAND_FIELDS):
        return True
    return any(_is_output_file(tool_input.get(name)) for name in _PATH_FIELDS)


def _is_polling_command(command: Any) -> bool:
    """Whether a command waits. An empty command waits for more output of the previous command."""
    if isinstance(command, list):
        command = " ".join(str(word)[:_MAX_COMMAND_LENGTH] for word in command[:16])
    if not isinstance(command, str):
        return False
    return not command.strip() or _POLLING_COMMAND.search(command[:_MAX_COMMAND_LENGTH]) is not None


def _is_output_file(path: Any) -> bool:
    return isinstance(path, str) and _OUTPUT_FILE.search(path[-16:]) is not None
