"""Diffs describe the change, whichever tool applies them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sandherd_worker.file_diffs import MAX_DIFF_BYTES, compare, preview


def patched(before: str, diff: str) -> str:
    """Apply a unified diff strictly: every line of context and every number has to fit."""
    old = re.findall(r"[^\n]*\n|[^\n]+", before)
    new: list[str] = []
    position = 0
    lines = diff.split("\n")[2:]
    for index, line in enumerate(lines):
        text = line[1:] + ("" if lines[index + 1 : index + 2] == ["\\ No newline at end of file"] else "\n")
        if line.startswith("@@"):
            found = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line)
            assert found is not None
            start = int(found[1]) - (0 if found[2] == "0" else 1)
            new += old[position:start]
            position = start
            assert len(new) == int(found[3]) - (0 if found[4] == "0" else 1)
        elif line.startswith((" ", "-")):
            assert old[position] == text
            position += 1
            new += [text] if line.startswith(" ") else []
        elif line.startswith("+"):
            new.append(text)
    return "".join(new + old[position:])


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "x" * 5, "-d", "+e"]), max_size=25)


@given(before=LINES, after=LINES, ends=st.tuples(st.booleans(), st.booleans()))
def test_diff_applied_to_the_old_text_yields_the_new_one(
    before: list[str], after: list[str], ends: tuple[bool, bool]
) -> None:
    """Line numbers, context, missing line ends at the end of a file and line counts are right."""
    old, new = ("\n".join(lines) + ("\n" if end else "") for lines, end in zip((before, after), ends, strict=True))
    change = compare("f.txt", old.encode(), new.encode())
    if old == new:
        return
    assert change.diff is not None
    assert patched(old, change.diff) == new
    body = change.diff.split("\n")[2:]
    assert change.added == sum(line.startswith("+") for line in body)
    assert change.removed == sum(line.startswith("-") for line in body)


def test_new_and_deleted_files_are_compared_with_dev_null() -> None:
    """The diff has git's form."""
    created, deleted = compare("a.py", None, b"x\ny\n"), compare("a.py", b"x\ny\n", None)
    assert created.diff == "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,2 @@\n+x\n+y\n"
    assert deleted.diff == "--- a/a.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
    assert (created.added, created.removed, deleted.added, deleted.removed) == (2, 0, 0, 2)


def test_binary_and_very_large_content_has_a_note_but_no_diff() -> None:
    """The note states why there is no diff."""
    assert compare("a", b"\0", b"x").binary
    large = compare("a", b"x\n", b"x" * (MAX_DIFF_BYTES + 1))
    assert large.diff is None
    assert "too large" in large.note


def test_many_unambiguous_lines_have_a_diff() -> None:
    """Lines added, removed, or within many unchanged ones have one; only two long texts are not compared."""
    many, others = b"one\n" * 40_000, b"other\n" * 40_000
    assert (compare("a", None, many).added, compare("a", many, None).removed) == (40_000, 40_000)
    middle = compare("a", many + b"x\ny\n" + many[:80_000], many + b"z\n" + many[:80_000])
    assert (middle.added, middle.removed, (middle.diff or "").count("\n")) == (1, 2, 2 + 1 + 3 + 3 + 3)
    assert "too large" in compare("a", many, others).note


def test_preview_is_short() -> None:
    """The limits are 100 lines and 5,000 characters."""
    assert preview("+x\n" * 500).count("\n") == 100
    assert len(preview("+" + "x" * 9000)) == 5000
