"""The spawner's part of a pull request's body. It is between two comments, the first with a digest of the part. Pure.

Text that users write before or after the part is preserved. If they have changed the part itself or removed a comment,
the spawner does not change the body any more.
"""

import re
from hashlib import sha256
from typing import Final

_BEGIN, _END = "<!-- sandherd:begin ", "<!-- sandherd:end -->"
_BEGIN_PATTERN: Final = re.compile(rf"{_BEGIN}([0-9a-f]{{12}}) -->\n")
_COMMENT: Final = re.compile(r"<!--(?=\s*sandherd:)", re.IGNORECASE)


def new_section(text: str) -> str:
    """The spawner's part of a body with this text, including the two comments."""
    content = _COMMENT.sub("<! --", _lines(text))
    return f"{_BEGIN}{_digest(content)} -->\n{content}\n{_END}"


def with_section(body: str, section: str) -> str:
    """The body with a new version of the spawner's part; unchanged if a user has changed or removed that part."""
    present = _lines(body)
    begin = _BEGIN_PATTERN.search(present)
    end = present.find(f"\n{_END}", begin.end()) if begin else -1
    if begin is None or end < 0 or begin[1] != _digest(present[begin.end() : end]):
        return body
    return f"{present[: begin.start()]}{section}{present[end + 1 + len(_END) :]}"


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip("\n")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]
