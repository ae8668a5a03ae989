"""Finds failed calls whose cause is a network or a server, not the agent. Pure.

No harness reports outages, so documented error texts of programs and servers are searched for. Only results of programs
and tools that fetch something are searched, because a failed test may print the same texts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from sandherd.shell.programs import RunProgram, programs_of

_TAIL: Final = 4000
"""How many of the last characters of a text are searched."""
_FETCHING: Final = frozenset(
    {
        "curl",
        "wget",
        "pip",
        "pip3",
        "apt",
        "apt-get",
        "apk",
        "dnf",
        "yum",
        "brew",
        "gem",
        "conda",
        "mamba",
        "gh",
        "glab",
    }
)
_FETCHING_SUBCOMMANDS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("npm", "pnpm", "yarn", "bun"), frozenset({"install", "i", "ci", "add", "update", "publish", "view"})
    ),
    **dict.fromkeys(("poetry", "pdm", "pipenv"), frozenset({"install", "add", "update", "lock", "sync"})),
    **dict.fromkeys(("bundle", "composer"), frozenset({"install", "update", "require"})),
    "uv": frozenset({"pip", "sync", "add", "lock", "tool"}),
    "git": frozenset({"clone", "fetch", "pull", "push", "ls-remote", "submodule"}),
    "cargo": frozenset({"fetch", "install", "add", "update"}),
    "go": frozenset({"get", "mod", "install"}),
    "docker": frozenset({"pull", "push", "build", "login"}),
}
_TOOLS: Final = re.compile(r"mcp__.*|web_?(?:fetch|search)|fetch|search_web", re.IGNORECASE)
"""Tools that fetch something: of Claude, of ACP's kind `fetch`, and those of MCP servers."""
_LOCAL: Final = re.compile(r"(?:^|//|@)(?:localhost|127\.[0-9.]+|0\.0\.0\.0|\[?::1\]?)(?=[:/]|$)")
"""An address of the sandbox itself: if nothing responds there, that is not an outage."""
_TEXTS: Final = re.compile(
    # Statuses of servers, as HTTP libraries and programs print them (RFC 9110 §15.6, RFC 6585 §4).
    r"\b(?:HTTP(?:/[0-9.]+)?|status(?: code)?|error)[ :=]{1,3}(?:429|5[0-9]{2})\b"
    r"|\b429 Too Many Requests|\b50[0234] (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)"
    # Error names of libuv and Node.js.
    r"|\b(?:ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|ENOTFOUND|ENETUNREACH|EHOSTUNREACH)\b"
    # Texts of the C library, curl, git and package managers.
    r"|Could not resolve host|[Tt]emporary failure (?:in name resolution|resolving)|Name or service not known"
    r"|[Nn]etwork is unreachable|No route to host|[Cc]onnection (?:refused|reset by peer|timed out)"
    r"|TLS handshake timeout|Read timed out"
)


def may_be_outage(tool: str, tool_input: Mapping[str, Any]) -> bool:
    """Whether the call fetches something from outside its sandbox."""
    return _TOOLS.fullmatch(tool) is not None or any(map(_fetches, programs_of(tool_input)))


def is_outage(text: str) -> bool:
    """Whether this result of a failed call that fetches something shows that its server could not be reached."""
    return _TEXTS.search(text[-_TAIL:]) is not None


def _fetches(program: RunProgram) -> bool:
    arguments = program.argv[1:]
    if any(_LOCAL.search(word) for word in arguments):
        return False
    return program.name in _FETCHING or not _FETCHING_SUBCOMMANDS.get(program.name, frozenset()).isdisjoint(arguments)
