"""The change of a file: counts of lines and a unified diff. Large contents are not compared.

The contents are compared unredacted, and the diff shows redacted lines. Each content is redacted as a whole: in the
diff, the signs at the beginning of lines would divide a secret of several lines.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

MAX_DIFF_BYTES: Final = 512 * 1024
"""Maximum size of a text that is compared line by line; above it, only its size is reported."""
MAX_DIFF_LINES: Final = 64 * 1024
"""Maximum number of lines of a text that is compared: a line takes more memory than its text."""
MAX_COMPARED_LINES: Final = 8000
"""Maximum number of lines of a text that are compared with those of another, which is the expensive part. Common lines
at the beginning and the end don't count, and text that is only added or only removed is not compared at all.
"""
PREVIEW_LINES: Final = 100
PREVIEW_CHARS: Final = 5000
_CONTEXT: Final = 3
HIDDEN: Final = "[redacted]\n"
"""The replacement of an unchanged line if only one of the two texts shows that the line contains a secret."""

Clean = Callable[[str], str]
"""Takes a text and returns it without secrets, in as many lines."""


@dataclass(frozen=True)
class FileDiff:
    """A change of one file. `diff` is None for binary or very large content."""

    binary: bool
    added: int
    removed: int
    diff: str | None
    note: str = ""
    """Why there is no diff."""


def preview(diff: str) -> str:
    """At most 100 lines and 5,000 characters of a diff."""
    return "".join(diff.splitlines(keepends=True)[:PREVIEW_LINES])[:PREVIEW_CHARS]


def is_binary(content: bytes) -> bool:
    """Git's own rule: a zero byte in the first 8,000 bytes."""
    return b"\0" in content[:8000]


def compare(
    path: str, before: bytes | None, after: bytes | None, *, previous: str | None = None, clean: Clean = str
) -> FileDiff:
    """The change from `before` to `after`; None stands for a missing file. `previous` is the path before a rename.

    The unredacted contents decide which lines have changed. The diff shows these lines as `clean` returns them.
    """
    if is_binary(before or b"") or is_binary(after or b""):
        return FileDiff(True, 0, 0, None, f"binary: {len(before or b'')} bytes before, {len(after or b'')} after")
    old, new = _lines(before), _lines(after)
    if max(len(before or b""), len(after or b"")) > MAX_DIFF_BYTES or max(len(old), len(new)) > MAX_DIFF_LINES:
        return _too_large(after, new)
    edges = _edges(old, new)
    left = [len(lines) - sum(edges) for lines in (old, new)]
    if min(left) > 0 and max(left) > MAX_COMPARED_LINES:
        return _too_large(after, new)
    heads = ("/dev/null" if before is None else f"a/{previous or path}", "/dev/null" if after is None else f"b/{path}")
    shown = _Shown(_cleaned(before, clean), _cleaned(after, clean))
    return _diff(heads, [line for group in _groups(old, new, edges) for line in _hunk(group, shown)])


def _too_large(after: bytes | None, new: list[str]) -> FileDiff:
    return FileDiff(False, 0, 0, None, f"too large for a diff: {len(after or b'')} bytes, {len(new)} lines")


def _diff(heads: tuple[str, str], lines: list[str]) -> FileDiff:
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    return FileDiff(False, added, removed, "".join(["--- {}\n+++ {}\n".format(*heads), *map(_ended, lines)]))


_Opcode = tuple[str, int, int, int, int]
"""One edit of a range of lines: `equal`, `replace`, `delete` or `insert`, and the range before and after."""


def _edges(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines the two have in common at the beginning, and at the end."""
    start = _common(old, new)
    return start, _common(old[start:][::-1], new[start:][::-1])


def _groups(old: list[str], new: list[str], edges: tuple[int, int]) -> Iterable[Sequence[_Opcode]]:
    """The changes with their context. Common lines at the beginning and the end are not compared."""
    start, stop = edges
    middle = SequenceMatcher(None, old[start : len(old) - stop], new[start : len(new) - stop], autojunk=True)
    moved: list[_Opcode] = [("equal", 0, start, 0, start)]
    moved += [(kind, i + start, j + start, k + start, m + start) for kind, i, j, k, m in middle.get_opcodes()]
    moved.append(("equal", len(old) - stop, len(old), len(new) - stop, len(new)))
    whole: SequenceMatcher[str] = SequenceMatcher(None, (), ())
    whole.opcodes = moved  # type: ignore[attr-defined]  # where get_opcodes caches its result
    return whole.get_grouped_opcodes(_CONTEXT)


def _hunk(group: Sequence[_Opcode], shown: "_Shown") -> Iterable[str]:
    first, last = group[0], group[-1]
    yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@\n"
    for kind, i, j, k, m in group:
        if kind == "equal":
            both = zip(shown.old[i:j], shown.new[k:m], strict=True)
            yield from (f" {left if left == right else HIDDEN}" for left, right in both)
            continue
        yield from (f"-{line}" for line in shown.old[i:j])
        yield from (f"+{line}" for line in shown.new[k:m])


def _span(start: int, stop: int) -> str:
    """A range of lines as written in a hunk's header (POSIX diff -u)."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


@dataclass(frozen=True)
class _Shown:
    """The redacted lines of both texts, one for each original line."""

    old: list[str]
    new: list[str]


def _cleaned(content: bytes | None, clean: Clean) -> list[str]:
    return _split(clean((content or b"").decode("utf-8", "replace")))


def _common(old: list[str], new: list[str]) -> int:
    for index, (left, right) in enumerate(zip(old, new, strict=False)):
        if left != right:
            return index
    return min(len(old), len(new))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(content: bytes | None) -> list[str]:
    """Lines as git counts them: only a line feed ends one."""
    return _split((content or b"").decode("utf-8", "replace"))


def _split(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1]] + ([last] if (last := text.rpartition("\n")[2]) else [])
