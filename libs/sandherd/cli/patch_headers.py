"""Rewrites the headers of a patch of two folders into the form that git uses in a repository."""

from typing import IO, Final

_HEADER: Final = b"diff --git "
_MAX_LINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a line that are read at once: a header is shorter."""


def copy_with_headers(patch: IO[bytes], out: IO[bytes]) -> None:
    """Copy a patch of `git diff --no-index` with corrected headers.

    For a new or deleted file, git repeats the path in the folder that has it: `b/x b/x` instead of `a/x b/x`.
    """
    at_line_start = True
    while piece := patch.readline(_MAX_LINE_BYTES):
        out.write(header_of(piece) if at_line_start and piece.startswith(_HEADER) else piece)
        at_line_start = piece.endswith(b"\n")


def header_of(line: bytes) -> bytes:
    """The header `diff --git a/x b/x` for `b/x b/x` or `a/x a/x`; other headers are unchanged."""
    names = line.removeprefix(_HEADER).rstrip(b"\n")
    half = len(names) // 2  # equal names have the same length, with a space between them
    first, second = names[:half], names[half + 1 :]
    if first != second:
        return line
    # git quotes a name with special characters
    quote = b'"' if first.startswith(b'"') else b""
    path = first[len(quote) + 1 :]
    return _HEADER + quote + b"a" + path + b" " + quote + b"b" + path + b"\n"
