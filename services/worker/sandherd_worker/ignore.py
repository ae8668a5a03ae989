"""Which paths of a work tree are not watched: what is never anybody's work, and what `.gitignore` at the root names.

The patterns are git's (`*`, `?`, `[…]`, `**`, a leading or inner slash, a trailing one, `!`). `.gitignore` files
further down and git's own configuration are not read.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

GIT: Final = ".git"
ALWAYS: Final = frozenset({GIT, "node_modules", "__pycache__", ".venv"})
UNFINISHED: Final = ".sandherd-part-"
"""How the names of files begin that are on their way into the work tree."""


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    ignores: bool
    directories_only: bool


class Ignored:
    """Tells whether a path, relative and with forward slashes, is passed over. The last rule that fits decides."""

    def __init__(self, gitignore: str = "") -> None:
        self._rules = tuple(rule for line in gitignore.splitlines() if (rule := _rule(line)) is not None)

    def __call__(self, path: str, *, directory: bool) -> bool:
        """Whether to pass it over. What lies in a directory that is passed over need not be asked for."""
        name = path.rpartition("/")[2]
        if name in ALWAYS or name.startswith(UNFINISHED):
            return True
        verdict = False
        for rule in self._rules:
            if (directory or not rule.directories_only) and rule.pattern.fullmatch(path):
                verdict = rule.ignores
        return verdict


def _rule(line: str) -> _Rule | None:
    text = line.rstrip()
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    directories_only = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    try:
        pattern = re.compile(("" if anchored else "(?:.*/)?") + "".join(_translate(text.lstrip("/"))))
    except re.error:
        return None
    return _Rule(pattern, ignores, directories_only)


_TOKEN: Final = re.compile(r"(?:^|(?<=/))\*\*/|/\*\*$|\*+|\?|\[!?[^]]+\]|\\.|.", re.DOTALL)


def _translate(glob: str) -> Iterable[str]:
    for part in _TOKEN.findall(glob):
        if part == "**/":
            yield "(?:.*/)?"
        elif part == "/**":
            yield "/.*"
        elif part.startswith("*"):
            yield "[^/]*"
        elif part == "?":
            yield "[^/]"
        elif part.startswith("[") and len(part) > 1:
            yield part.replace("[!", "[^", 1)
        else:
            yield re.escape(part.removeprefix("\\") or "\\")
