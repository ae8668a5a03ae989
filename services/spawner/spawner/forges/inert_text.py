"""Texts of agents and users that have no effect in a pull request, neither as Markdown nor as a commit message. All pure.

A squash merge makes the title and body a commit's message, so code fences alone are not enough: forges search commit
messages, and GitLab also fences, for `Closes #1`. A zero-width space after the first character of what would have an
effect leaves it readable.
"""

import re
from typing import Final

from spawner.forges.plain_text import plain, without_controls

_BREAK: Final = "\N{ZERO WIDTH SPACE}"
_KEYWORD: Final = (
    r"clos(?:e[sd]?|ing)|fix(?:e[sd]|ing)?|resolv(?:e[sd]?|ing)|implement(?:s|ed|ing)?|reopen(?:s|ed|ing)?"
    r"|refs?|references?|relate[sd]?|see"
)
_EFFECTS: Final = (
    (r"@(?=[\w\-/])", re.NOFLAG),  # notifies a user, or commands a bot
    (r"[#!&%$~](?=\d|[\w\"])", re.NOFLAG),  # references of all forges: issues, merge requests, epics, labels, …
    (r"\b[Gg](?=[Hh]-\d)", re.NOFLAG),
    (r"/(?=(?:issues|pulls?|merge_requests|work_items|epics|commit|discussions)/\w)", re.IGNORECASE),
    (rf"\b[a-z](?=(?<=\b[a-z])(?:(?<=c)los|(?<=f)ix|(?<=r)esolv|(?<=i)mplement|(?<=r)eopen)\w*[:\s]+\S*\d)", re.IGNORECASE),
    (r"(?m)^\s*/(?=\w)", re.NOFLAG),  # GitLab's quick actions, and those of bots
    (r"\[(?=[^\]\n]{0,20}(?:skip|no)[ -]|[^\]\n]{0,20}skip\])", re.IGNORECASE),  # [skip ci]
    (r"(?m)^\s*\w(?=[\w-]*:\s)", re.NOFLAG),  # trailers: Signed-off-by, skip-checks, Co-authored-by
)
