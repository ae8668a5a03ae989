"""Redaction of diffs: a value of several lines is found before the diff is made."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.file_diffs import compare
from sandherd_worker.file_tracker import FileTracker
from sandherd_worker.redaction import MARK, Redactor
from tests.unit.worker.redaction_writers import CASES, TOKEN, folded, redactor_of, shell, shown_of

WRAPPED = {
    "base64": shell('printf %s "$S" | base64 -w 20'),
    "base64, short lines": shell('printf %s "$S" | base64 -w 4'),
    "xxd": shell('printf %s "$S" | xxd'),
    "hexdump -C": shell('printf %s "$S" | hexdump -C'),
    "folded": shell('printf %s "$S" | fold -w 12'),
    "a list of YAML": lambda text: "".join(f"  - {line}\n" for line in folded(text, 15)),
    "a block of YAML": lambda text: "key: |\n" + "".join(f"    {line}\n" for line in folded(text, 22)),
    "a comment": lambda text: "".join(f"// {line}\n" for line in folded(text, 15)),
    "a diff": lambda text: "".join(f"+{line}\n" for line in folded(text, 15)),
}


@pytest.mark.parametrize("write", WRAPPED.values(), ids=WRAPPED.keys())
@pytest.mark.parametrize("seed", range(3))
async def test_multi_line_secret_is_in_no_diff(
    tmp_path: Path, listener: Any, emitter: Any, write: Callable[[str], str], seed: int
) -> None:
    """Created, changed beside it and removed: the diff's marks are within no value, and the counts are right."""
    secret = random.Random(seed).randbytes(24).hex() if seed else TOKEN[:60]
    file, written = tmp_path / "work/file", write(secret)
    file.parent.mkdir()
    tracker = FileTracker(
        file.parent, tmp_path / "shadow", Redactor([secret]), listener.publish, emitter.store_artifact
    )
    await tracker.start()
    for text in (f"a\n{written}\nb\n", f"a\nbetween\n{written}\nb\n", None):
        file.unlink() if text is None else file.write_text(text)
        await tracker.scan(last=True)
    await tracker.finish()
    made, changed, gone = listener.events
    lines = f"a\n{written}\nb\n".count("\n")
    assert (made.lines_added, changed.lines_added, gone.lines_removed) == (lines, 1, lines + 1)
    for event in listener.events:
        assert event.diff_preview.count(MARK) >= min(2, lines - 2)
        body = "".join(line[1:] for line in event.full_diff.splitlines()[3:])
        assert shown_of(body, Redactor()) <= len("abetweenb") + 2 * lines + 10 * body.count("0000")


@pytest.mark.parametrize(("write", "secret"), CASES)
def test_diff_contains_no_encoded_secret(write: Callable[[str], str], secret: str) -> None:
    """A secret in any documented encoding is redacted in the diff of a file."""
    redactor = redactor_of(secret)
    before = "".join(f"line {number}\n" for number in range(9))
    change = compare(
        "f", before.encode(), f"{before}{write(secret)}\n".encode("utf-8", "replace"), clean=redactor.lines
    )
    assert change.diff is not None
    assert MARK in change.diff
    left = "".join(line[1:] for line in change.diff.splitlines()[3:]).replace(MARK, "")
    assert left.count("0000") < 9
    assert len("".join(left.split())) < 80 + 12 * left.count("0000") + len("line") * 4


def test_diff_between_two_secrets_shows_a_change() -> None:
    """The lines are compared as they are, and shown redacted."""
    redactor = Redactor(["hunter22hunter22", "other-secret-value"])
    change = compare("f", b"k: hunter22hunter22\nz\n", b"k: other-secret-value\nz\n", clean=redactor.lines)
    assert change.diff is not None
    assert change.diff.endswith(f"\n-k: {MARK}\n+k: {MARK}\n z\n")
    assert (change.added, change.removed) == (1, 1)


def test_earlier_line_of_a_completed_secret_is_redacted_in_a_diff() -> None:
    """If a change completes a secret, its first half is also redacted in the older text."""
    half, rest = TOKEN[:30], TOKEN[30:60]
    redactor = Redactor([half + rest])
    change = compare("f", f"{half}\n".encode(), f"{half}\n{rest}\n".encode(), clean=redactor.lines)
    assert change.diff is not None
    assert change.diff.endswith(f"\n {MARK}\n+{MARK}\n")


def test_redacted_text_has_as_many_lines() -> None:
    """Each line with a secret has its own mark, and an empty one stays empty."""
    redactor = Redactor(["one line\n\nanother line\n"])
    assert redactor.lines("a\nb one line\n\nanother line\nc\n") == f"a\nb {MARK}\n\n{MARK}\nc\n"
    assert redactor.lines(json.dumps("x one line\n\nanother line\n y")) == f'"x {MARK} y"'
