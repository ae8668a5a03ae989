"""The guarantees of docs/security.md: each names a test that exists."""

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_ROW = re.compile(r"^\| (?P<guarantee>[^|]+) \| (?P<mechanism>[^|]+) \| (?P<tests>[^|]+) \|$")
_TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)(?:::(\w+))?`")


def _rows() -> list[tuple[str, str]]:
    text = (_ROOT / "docs" / "security.md").read_text().partition("## Guarantees")[2]
    found = [match for line in text.splitlines() if (match := _ROW.match(line))]
    return [
        (row["guarantee"], row["tests"])
        for row in found
        if row["guarantee"] not in {"guarantee", "attack", "finding", "---"}
    ]


def test_each_guarantee_names_a_test_that_exists() -> None:
    """A guarantee without a test is a hope: each row names a test file, and a function in it if it names one."""
    wrong: list[str] = []
    for guarantee, tests in _rows():
        named = _TEST.findall(tests)
        if not named:
            wrong.append(f"names no test: {guarantee}")
        for path, function in named:
            file = _ROOT / path
            if not file.is_file() or (function and f"def {function}(" not in file.read_text()):
                wrong.append(f"{path}::{function} of: {guarantee}")
    assert not wrong
