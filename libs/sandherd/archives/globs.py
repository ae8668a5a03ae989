"""Git's globs (`wildmatch`) as regular expressions over bytes, one for each directory of a pattern."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

Segment = re.Pattern[bytes] | None
"""What the name of one directory or file must match; None stands for any number of directories."""

_SPECIAL: Final = re.compile(rb"[*?\[\\]")
"""Matches the characters of a glob that are not literal."""
_ANY_NAME: Final = re.compile(rb"[^/]*")
_STAR: Final = b"*"
_ESCAPED_SLASH: Final = rb"\/"
_CLASSES: Final = {
    b"alnum": rb"[0-9A-Za-z]", b"alpha": rb"[A-Za-z]", b"blank": rb"[ \t]", b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]", b"graph": rb"[!-~]", b"lower": rb"[a-z]", b"print": rb"[ -~]",
    b"punct": rb"[!-/:-@\[-`{-~]", b"space": rb"[ \t\n\r]", b"upper": rb"[A-Z]", b"xdigit": rb"[0-9A-Fa-f]",
}  # fmt: skip
"""Character classes, such as `[:alnum:]`, as expressions."""


class _NoMatchError(Exception):
    """The pattern is incomplete, so it matches nothing."""


def literal_length(pattern: bytes) -> int:
    """The length of the literal prefix of the pattern."""
    special = _SPECIAL.search(pattern)
    return special.start() if special else len(pattern)


def segments(glob: bytes, *, whole: bool) -> Sequence[Segment]:
    """The segments of a glob, one for each directory. With `whole`, the glob is for a single name, and `**` is `*`."""
    try:
        pieces = [list(_tokens(glob))] if whole else list(_split(_tokens(glob)))
    except _NoMatchError:
        return [re.compile(rb"(?!)")]
    compiled: list[Segment] = []
    for number, piece in enumerate(pieces):
        escaped = piece[-1:] == [_ESCAPED_SLASH]
        names = piece[:-1] if escaped else piece
        if whole or not _is_double_star(names):
            compiled.append(_expression(names))
        else:
            # The last `**`, and one before `\/`, matches at least one directory.
            compiled += [_ANY_NAME, None] if escaped or number == len(pieces) - 1 else [None]
    return compiled


def _is_double_star(piece: Sequence[bytes]) -> bool:
    return len(piece) > 1 and all(token == _STAR for token in piece)


def _split(tokens: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The tokens of each directory; if its slash is escaped, the last token is that slash."""
    piece: list[bytes] = []
    for token in tokens:
        if token in {b"/", _ESCAPED_SLASH}:
            yield piece + ([_ESCAPED_SLASH] if token == _ESCAPED_SLASH else [])
            piece = []
        else:
            piece.append(token)
    yield piece


def _tokens(glob: bytes) -> Iterator[bytes]:
    """Stars, slashes, and expressions for one byte each. Raises `_NoMatchError`."""
    at = 0
    while at < len(glob):
        byte = glob[at : at + 1]
        at += 1
        if byte == b"[":
            members, at = _bracket(glob, at)
            yield members
        elif byte == b"\\":
            if not glob[at : at + 1]:
                raise _NoMatchError
            escaped = glob[at : at + 1]
            yield _ESCAPED_SLASH if escaped == b"/" else _byte_expression(escaped[0])
            at += 1
        else:
            yield {b"?": b"[^/]", _STAR: _STAR, b"/": b"/"}.get(byte) or _byte_expression(byte[0])


def _byte_expression(byte: int) -> bytes:
    return rb"\x%02x" % byte


def _expression(tokens: Sequence[bytes]) -> re.Pattern[bytes]:
    """The expression for one name.

    A star matches as little as possible, atomically: the next star can match what a longer match would have matched.
    """
    first, *others = _between_stars(tokens)
    if not others:
        return re.compile(first)
    middle = b"".join(b"(?>[^/]*?%b)" % part for part in others[:-1] if part)
    return re.compile(first + middle + b"[^/]*" + others[-1])


def _between_stars(tokens: Sequence[bytes]) -> list[bytes]:
    """The tokens before, between and after the stars."""
    parts = [b""]
    for token in tokens:
        if token == _STAR:
            parts.append(b"")
        else:
            parts[-1] += token
    return parts


def _bracket(glob: bytes, at: int) -> tuple[bytes, int]:
    """An expression for the bracket set that begins at `at`, and the position after it. Raises `_NoMatchError`."""
    negated = glob[at : at + 1] in {b"!", b"^"}
    at += negated
    members: set[int] = set()
    range_start: int | None = None
    first = True
    while first or glob[at : at + 1] != b"]":
        first = False
        added, range_start, at = _member(glob, at, range_start)
        members |= added
    chosen = (set(range(256)) - members if negated else members) - {ord("/")}
    return b"[%b]" % b"".join(map(_byte_expression, sorted(chosen))) if chosen else b"(?!)", at + 1


def _member(glob: bytes, at: int, range_start: int | None) -> tuple[set[int], int | None, int]:
    """The bytes of one member of a set, the possible start of a range after it, and the position of the next member."""
    byte = _byte(glob, at)
    if byte == ord("-") and range_start and glob[at + 1 : at + 2] not in {b"", b"]"}:
        end, at = _unescape(glob, at + 1)
        return set(range(range_start, end + 1)), None, at
    if byte == ord("[") and glob[at + 1 : at + 2] == b":":
        closing = glob.find(b"]", at + 2)
        if closing < 0:
            raise _NoMatchError
        if closing > at + 2 and glob[closing - 1 : closing] == b":":
            return _class_members(glob[at + 2 : closing - 1]), None, closing + 1
        return {byte}, byte, at + 1
    byte, at = _unescape(glob, at)
    return {byte}, byte, at


def _class_members(name: bytes) -> set[int]:
    if name not in _CLASSES:
        raise _NoMatchError
    return {byte for byte in range(256) if re.fullmatch(_CLASSES[name], bytes([byte]))}


def _unescape(glob: bytes, at: int) -> tuple[int, int]:
    at += _byte(glob, at) == ord("\\")
    return _byte(glob, at), at + 1


def _byte(glob: bytes, at: int) -> int:
    if at >= len(glob):
        raise _NoMatchError
    return glob[at]
