"""What the SDK is told: its options and its environment, from the specification's harness."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sandherd_drivers.commands import Begin

ASK_AGAIN_NEVER: Final = 20 * 86_400
"""How long a hook may wait, in seconds. More than 24.8 days would be no time at all for the program's timers."""
_LONGEST_MESSAGE: Final = 64 * 1024 * 1024
"""One message of the program may be this large; the SDK ends over its own limit of 1 MiB, which an image exceeds."""
_ELSEWHERE: Final = ("AskUserQuestion",)
"""Tools that want a person at a terminal."""
_SUBAGENTS: Final = ("Task", "Agent", "Workflow")
_SKILLS: Final = ("Skill",)
_KEEP_HOOKS: Final = '{"disableAllHooks": false}'
"""Settings above those of the work tree, which must not switch off who is asked."""
_RETRIES: Final = "6"
"""About half a minute; the program's own number lets a wrong key fail after three."""


def mode(harness: Mapping[str, Any]) -> str:
    """The permission mode. Where permissions are passed over a part of a tool can't be allowed; by default it can."""
    wanted = str(harness.get("permission_mode") or "default")
    in_part = any("(" in str(tool) for tool in harness.get("allowed_tools") or [])
    return "default" if in_part and wanted == "bypassPermissions" else wanted


def environment(given: Mapping[str, str], config: Path) -> dict[str, str]:
    """Variables for the program, beside those that the agent has been given; of these some come first."""
    return {
        "CLAUDE_CONFIG_DIR": str(config),
        "CLAUDE_CODE_TMPDIR": str(config / "tmp"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_MAX_RETRIES": given.get("CLAUDE_CODE_MAX_RETRIES", _RETRIES),
        "DISABLE_AUTOUPDATER": "1",
        # Root may pass over all permissions only where this is said; and it is so.
        "IS_SANDBOX": "1",
    }


def prompt_files(harness: Mapping[str, Any], state: Path) -> dict[str, Any]:
    """The system prompt by way of files: as an argument it could be too long, and everybody could read it."""
    own, behind = harness.get("system_prompt"), harness.get("append_system_prompt")
    if own is not None:
        text = own if behind is None else f"{own}\n\n{behind}"
        return {"system_prompt": {"type": "file", "path": _file(state / "system-prompt.txt", text)}}
    preset = {"system_prompt": {"type": "preset", "preset": "claude_code"}}
    if behind is None:
        return preset
    return {**preset, "extra_args": {"append-system-prompt-file": _file(state / "append-prompt.txt", behind)}}


def tool_options(harness: Mapping[str, Any]) -> dict[str, Any]:
    """Which tools there are. Those that are allowed are all that there are; a pattern allows a part of one."""
    allowed = [str(tool) for tool in harness.get("allowed_tools") or []]
    denied = [*(str(tool) for tool in harness.get("disallowed_tools") or []), *_ELSEWHERE]
    options: dict[str, Any] = {"skills": "all"}
    if not harness.get("subagents", True):
        denied += _SUBAGENTS
    if not harness.get("skills", True):
        denied += _SKILLS
        options["skills"] = []
    if allowed:
        there_are = {tool.partition("(")[0] for tool in allowed if not tool.startswith("mcp__")}
        options |= {"allowed_tools": allowed, "tools": sorted(there_are)}
    return {**options, "disallowed_tools": sorted(set(denied))}


def servers(harness: Mapping[str, Any], state: Path) -> str | dict[str, Any]:
    """Servers of further tools, by way of a file: there may be secrets in it, and everybody can read arguments."""
    named = harness.get("mcp_servers")
    return _file(state / "mcp-servers.json", json.dumps({"mcpServers": named})) if named else {}


def limits(harness: Mapping[str, Any], spent_before: float) -> dict[str, Any]:
    """How far it may go. The program counts on from what the session has cost before, the specification does not."""
    budget = harness.get("max_budget_micro_usd")
    return {
        "max_turns": harness.get("max_turns"),
        "max_budget_usd": None if budget is None else budget / 1_000_000 + spent_before,
    }


def session_options(begin: Begin, session: str) -> dict[str, Any]:
    """Which session it is: a new one of this name, one that goes on, or its fork of this name."""
    if begin.resume is None:
        return {"session_id": session}
    if begin.resume.fork:
        return {"resume": begin.resume.session_id, "fork_session": True, "session_id": session}
    return {"resume": begin.resume.session_id}


def options(begin: Begin, session: str, given: Mapping[str, str], spent_before: float) -> dict[str, Any]:
    """All options but those that are functions."""
    state = Path(begin.state_dir)
    told = prompt_files(begin.harness, state)
    told["extra_args"] = {"replay-user-messages": None, **told.get("extra_args", {})}
    return {
        "cwd": begin.work_dir,
        "model": begin.harness.get("model"),
        "permission_mode": mode(begin.harness),
        "mcp_servers": servers(begin.harness, state),
        "setting_sources": ["user", "project"],
        "settings": _KEEP_HOOKS,
        "max_buffer_size": _LONGEST_MESSAGE,
        "forward_subagent_text": True,
        "env": environment(given, state / "claude"),
        **told,
        **tool_options(begin.harness),
        **limits(begin.harness, spent_before),
        **session_options(begin, session),
    }


def _file(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="replace")
    return str(path)
