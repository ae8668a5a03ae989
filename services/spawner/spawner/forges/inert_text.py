"""Texts of agents and users that have no effect in a pull request, as Markdown and as a commit message. All pure.

A squash merge makes the title and body the message of a commit, so code fences alone are not enough: forges search
such messages for `Closes #1`, and GitLab searches fences, too. A zero-width space inside of what would have an effect
leaves it readable.
"""

import re
from typing import Final

from spawner.forges.plain_text import plain, without_controls

_BREAK: Final = "\N{ZERO WIDTH SPACE}"
_KEYWORDS: Final = (
    "clos(?:e[sd]?|ing)|fix(?:e[sd]|ing)?|resolv(?:e[sd]?|ing)|implement(?:s|ed|ing)?|reopen(?:s|ed|ing)?"
)
_EFFECTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"@(?=[\w-])",  # notifies a user or team, or commands a bot
        r"[#!&](?=\d)",  # issues, merge requests and epics
        r"\bgh-(?=\d)",
        r"/(?:issues|pulls?|merge_requests|work_items|epics)/(?=\d)",  # the same as a URL
        rf"\b(?:{_KEYWORDS})(?=[:\s]+[a-z][a-z0-9_]*-\d)",  # an issue of another tracker, such as Jira's
        r"^[ \t]*/(?=\w)",  # GitLab's quick actions (`/merge`), and those of bots
        r"\[(?=[^\]\n]{0,40}(?:skip|no ci)[^\]\n]{0,40}\])",  # [skip ci], [ci skip], [no ci]
        r"^[ \t]*(?=(?:[a-z][a-z-]*-by|skip-checks|fixes|closes|resolves)[ \t]*:)",  # trailers of a commit
    )
)
_DRAFT: Final = re.compile(
    r"^(?:\s*(?:\[(?:draft|wip)\]|\((?:draft|wip)\)|(?:draft|wip):|fixup!|squash!))+\s*", re.IGNORECASE
)
"""What at the begin of a title makes a pull request a draft."""


def inert(text: str) -> str:
    """The text without effects on a forge. It is not Markdown yet."""
    for effect in _EFFECTS:
        text = effect.sub(lambda match: match[0] + _BREAK, text)
    return text


def inert_title(text: str, limit: int) -> str:
    """One line for a title, from the first line of a text that is not empty."""
    first = next((line for line in without_controls(text).splitlines() if line.strip()), "")
    return inert(plain(_DRAFT.sub("", first), limit))[:limit]


def code_block(text: str, limit: int) -> str:
    """A text as a fenced block, of at most `limit` characters without what makes it inert."""
    clean = without_controls(text[: limit + 1]).strip("\n")
    shown = inert(clean if len(text) <= limit else f"{clean[: limit - 1]}…")
    fence = _fence(shown, shortest=3)
    return f"{fence}text\n{shown}\n{fence}"


def code_span(text: str, limit: int) -> str:
    """A text as code inside of a line."""
    shown = inert(plain(text, limit))
    if not shown:
        return "–"
    fence = _fence(shown, shortest=1)
    gap = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{gap}{shown}{gap}{fence}"


def _fence(text: str, shortest: int) -> str:
    """Backticks that are in no part of the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
