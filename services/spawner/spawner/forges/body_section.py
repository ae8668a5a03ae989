"""The spawner's part of a pull request's body: between two comments, the first one with a digest of the part. Pure.

Text that users write before or after the part is preserved. If they have changed the part itself or removed a comment,
the spawner does not change the body any more.
"""

import re
from hashlib import sha256
from typing import Final

_BEGIN, _END = "<!-- sandherd:begin ", "<!-- sandherd:end -->"
_BEGUN: Final = re.compile(rf"{_BEGIN}([0-9a-f]{{12}}) -->\n")
_MARK: Final = re.compile(r"<!--(?=\s*sandherd:)", re.IGNORECASE)


def marked(text: str) -> str:
    """The spawner's part of a body with this text: between the comments."""
    own = _MARK.sub("<! --", _lines(text))
    return f"{_BEGIN}{_digest(own)} -->\n{own}\n{_END}"


def with_section(body: str, section: str) -> str:
    """The body with a new version of the spawner's part; unchanged if a user has changed that part."""
    present = _lines(body)
    begun = _BEGUN.search(present)
    end = present.find(f"\n{_END}", begun.end()) if begun else -1
    if begun is None or end < 0 or begun[1] != _digest(present[begun.end() : end]):
        return body
    return f"{present[: begun.start()]}{section}{present[end + 1 + len(_END) :]}"


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip("\n")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]
