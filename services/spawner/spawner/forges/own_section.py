"""The part of a pull request's body that is the spawner's: between two comments, with a digest of what it wrote. Pure.

What users write before or after it stays, and all of it if they have changed the part itself, or removed a comment.
"""

import re
from hashlib import sha256
from typing import Final

_BEGIN, _END = "<!-- sandherd:begin ", "<!-- sandherd:end -->"
_SECTION: Final = re.compile(rf"{_BEGIN}([0-9a-f]{{12}}) -->\n(.*?)\n{_END}", re.DOTALL)
_MARK: Final = re.compile(r"<!--(?=\s*sandherd:)", re.IGNORECASE)


def marked(text: str) -> str:
    """The text as the spawner's part of a body."""
    own = _MARK.sub("<! --", _lines(text))
    return f"{_BEGIN}{_digest(own)} -->\n{own}\n{_END}"


def with_section(body: str, section: str) -> str:
    """The body with a new version of the spawner's part; the same if that is not as the spawner wrote it."""
    present = _lines(body)
    found = _SECTION.search(present)
    if found is None or found[1] != _digest(found[2]):
        return body
    return f"{present[: found.start()]}{section}{present[found.end() :]}"


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip("\n")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]
