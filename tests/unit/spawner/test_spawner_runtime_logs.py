"""The log of a worker of the process runtime, which is a file."""

from pathlib import Path

import pytest

from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.runtime_logs import LogQuery, file_log, last_lines


@pytest.mark.parametrize(("lines", "expected"), [(0, b""), (1, b"b"), (2, b"a\nb"), (9, b"a\nb")])
def test_last_lines_include_an_incomplete_one(lines: int, expected: bytes) -> None:
    """A text need not end with a line's end."""
    assert last_lines(b"a\nb", lines) == expected


async def test_what_is_written_before_its_end_is_read(tmp_path: Path) -> None:
    """The output just before the process's end is read when following; otherwise only the present content is."""
    file = tmp_path / "log"
    file.write_bytes(b"one\n")

    def ends() -> bool:
        with file.open("ab") as log:
            log.write(b"last\n")
        return False

    assert await _all(file, LogQuery(follow=True, lines=0), ends) == b"last\n"
    assert await _all(file, LogQuery(lines=1), lambda: True) == b"last\n"


async def test_a_missing_log_is_named(tmp_path: Path) -> None:
    """A worker that was never started has none."""
    with pytest.raises(RuntimeFailedError, match="no log"):
        await _all(tmp_path / "log", LogQuery(), lambda: False)


async def _all(file: Path, query: LogQuery, is_alive: object) -> bytes:
    return b"".join([piece async for piece in file_log(file, query, is_alive)])  # type: ignore[arg-type]  # a function
