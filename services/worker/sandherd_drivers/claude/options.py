"""The SDK's options and environment, from the harness of the specification."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sandherd_drivers.commands import Begin

HOOK_TIMEOUT: Final = 20 * 86_400
"""How long a hook may wait, in seconds. More than 24.8 days would overflow the program's timers to zero."""
_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a message of the program. A larger one ends the session; images exceed the SDK's default of 1 MiB."""
_TERMINAL_TOOLS: Final = ("AskUserQuestion",)
"""Tools that need a user at a terminal."""
_SUBAGENT_TOOLS: Final = ("Task", "Agent", "Workflow")
_SKILL_TOOLS: Final = ("Skill",)
_SETTINGS_WITH_HOOKS: Final = '{"disableAllHooks": false}'
"""Settings with precedence over those of the work tree, which must not disable approval hooks."""
_MAX_RETRIES: Final = "6"
"""How often the program retries a request: for half a minute. By default, a wrong key fails after three minutes."""


def permission_mode(harness: Mapping[str, Any]) -> str:
    """The permission mode. It is `default` instead of `bypassPermissions` if only a part of a tool is allowed.

    In the mode `bypassPermissions` the program does not check which part of a tool is used.
    """
    requested = str(harness.get("permission_mode") or "default")
    has_patterns = any("(" in str(tool) for tool in harness.get("allowed_tools") or [])
    return "default" if has_patterns and requested == "bypassPermissions" else requested


def environment(agent_environment: Mapping[str, str], config: Path) -> dict[str, str]:
    """Additional variables for the program. They override those of the agent, except `CLAUDE_CODE_MAX_RETRIES`."""
    return {
        "CLAUDE_CONFIG_DIR": str(config),
        "CLAUDE_CODE_TMPDIR": str(config / "tmp"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_MAX_RETRIES": agent_environment.get("CLAUDE_CODE_MAX_RETRIES", _MAX_RETRIES),
        "DISABLE_AUTOUPDATER": "1",
        # The program lets root bypass all permissions only if this variable is set.
        "IS_SANDBOX": "1",
    }


def prompt_files(harness: Mapping[str, Any], state: Path) -> dict[str, Any]:
    """The system prompt in files: as an argument it could be too long, and other processes could read it."""
    prompt, appended = harness.get("system_prompt"), harness.get("append_system_prompt")
    if prompt is not None:
        text = prompt if appended is None else f"{prompt}\n\n{appended}"
        return {"system_prompt": {"type": "file", "path": _write_file(state / "system-prompt.txt", text)}}
    preset = {"system_prompt": {"type": "preset", "preset": "claude_code"}}
    if appended is None:
        return preset
    return {**preset, "extra_args": {"append-system-prompt-file": _write_file(state / "append-prompt.txt", appended)}}


def tool_options(harness: Mapping[str, Any]) -> dict[str, Any]:
    """The available tools. If some are allowed, only those are available; a pattern allows a part of a tool."""
    allowed = [str(tool) for tool in harness.get("allowed_tools") or []]
    denied = [*(str(tool) for tool in harness.get("disallowed_tools") or []), *_TERMINAL_TOOLS]
    options: dict[str, Any] = {"skills": "all"}
    if not harness.get("subagents", True):
        denied += _SUBAGENT_TOOLS
    if not harness.get("skills", True):
        denied += _SKILL_TOOLS
        options["skills"] = []
    if allowed:
        available = {tool.partition("(")[0] for tool in allowed if not tool.startswith("mcp__")}
        options |= {"allowed_tools": allowed, "tools": sorted(available)}
    return {**options, "disallowed_tools": sorted(set(denied))}


def mcp_servers(harness: Mapping[str, Any], state: Path) -> str | dict[str, Any]:
    """MCP servers in a file: they may contain secrets, and other processes can read arguments."""
    configured = harness.get("mcp_servers")
    return _write_file(state / "mcp-servers.json", json.dumps({"mcpServers": configured})) if configured else {}


def limits(harness: Mapping[str, Any], cost_before: float) -> dict[str, Any]:
    """The limits of turns and cost. Only the program's budget includes the earlier cost of a resumed session."""
    budget = harness.get("max_budget_micro_usd")
    return {
        "max_turns": harness.get("max_turns"),
        "max_budget_usd": None if budget is None else budget / 1_000_000 + cost_before,
    }


def session_options(begin: Begin, session: str) -> dict[str, Any]:
    """The options for a new session with this id, a resumed session, or a fork with this id."""
    if begin.resume is None:
        return {"session_id": session}
    if begin.resume.fork:
        return {"resume": begin.resume.session_id, "fork_session": True, "session_id": session}
    return {"resume": begin.resume.session_id}


def options(begin: Begin, session: str, agent_environment: Mapping[str, str], cost_before: float) -> dict[str, Any]:
    """All options except callbacks."""
    state = Path(begin.state_dir)
    prompt_options = prompt_files(begin.harness, state)
    # The program then repeats each message that the agent has taken, so that the driver can report that.
    prompt_options["extra_args"] = {"replay-user-messages": None, **prompt_options.get("extra_args", {})}
    return {
        "cwd": begin.work_dir,
        "model": begin.harness.get("model"),
        "permission_mode": permission_mode(begin.harness),
        "mcp_servers": mcp_servers(begin.harness, state),
        "setting_sources": ["user", "project"],
        "settings": _SETTINGS_WITH_HOOKS,
        "max_buffer_size": _MAX_MESSAGE_BYTES,
        "forward_subagent_text": True,
        "env": environment(agent_environment, state / "claude"),
        **prompt_options,
        **tool_options(begin.harness),
        **limits(begin.harness, cost_before),
        **session_options(begin, session),
    }


def _write_file(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="replace")
    return str(path)
