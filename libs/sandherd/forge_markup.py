"""Escapes texts of agents and users so that they have no effect on a forge, in commit messages and pull requests. Pure.

Forges close issues by `Closes #1` in commit messages, notify users by `@name`, and skip checks by `[skip ci]`. A
zero-width space in such a text prevents the effect, and the text stays readable.
"""

import re
from typing import Final

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


def escape_forge_markup(text: str) -> str:
    """The text with zero-width spaces, so that it has no effect on a forge. Markdown in it is not escaped."""
    for effect in _EFFECTS:
        text = effect.sub(lambda match: match[0] + _BREAK, text)
    return text
