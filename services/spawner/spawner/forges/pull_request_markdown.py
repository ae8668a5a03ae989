"""Escapes texts of agents and users, so that they have no effect in a pull request or a commit message. Pure.

By a squash merge, the title and body become the message of a commit. So code fences are not enough: forges search such
messages for `Closes #1`, and GitLab also searches inside fences.
"""

import re
from typing import Final

from sandherd.forge_markup import escape_forge_markup
from spawner.forges.plain_text import plain, without_controls

_DRAFT_PREFIXES: Final = re.compile(
    r"^(?:\s*(?:\[(?:draft|wip)\]|\((?:draft|wip)\)|(?:draft|wip):|fixup!|squash!))+\s*", re.IGNORECASE
)
"""Prefixes of a title that make a pull request a draft."""


def escaped_title(text: str, limit: int) -> str:
    """The first line of the text that is not empty, escaped for a title, and without prefixes of a draft."""
    first = next((line for line in without_controls(text).splitlines() if line.strip()), "")
    return escape_forge_markup(plain(_DRAFT_PREFIXES.sub("", first), limit))[:limit]


def code_block(text: str, limit: int) -> str:
    """The text as a fenced code block. `limit`: the maximum characters of the text before it is escaped."""
    clean = without_controls(text[: limit + 1]).strip("\n")
    escaped = escape_forge_markup(clean if len(text) <= limit else f"{clean[: limit - 1]}…")
    fence = _fence(escaped, shortest=3)
    return f"{fence}text\n{escaped}\n{fence}"


def code_span(text: str, limit: int) -> str:
    """The text as inline code; a dash if it is empty."""
    escaped = escape_forge_markup(plain(text, limit))
    if not escaped:
        return "–"
    fence = _fence(escaped, shortest=1)
    gap = " " if escaped.startswith("`") or escaped.endswith("`") else ""
    return f"{fence}{gap}{escaped}{gap}{fence}"


def _fence(text: str, shortest: int) -> str:
    """A run of backticks that is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
