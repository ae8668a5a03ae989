"""The output of a command: complete, in order, from any offset, up to the cap."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandherd.contracts.requests.access import INLINE_BYTES
from sandherd_worker.access import command_log as module
from sandherd_worker.access.command_log import CommandLog, Stream, unfinished

WRITES = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=50)), max_size=30)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommandLog]:
    opened = CommandLog(tmp_path, "exc-1", lambda _size: True)
    yield opened
    opened.remove()


def read(log: CommandLog, offset: int = 0) -> list[tuple[str, bytes]]:
    """All of it, as it is asked for: from where the last answer ended."""
    found: list[tuple[str, bytes]] = []
    while pieces := log.read(offset):
        assert sum(len(piece.data) for piece in pieces) <= INLINE_BYTES
        found += [(piece.stream, piece.data) for piece in pieces]
        offset += sum(len(piece.data) for piece in pieces)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(writes=WRITES, offset=st.integers(0, 2000))
def test_output_is_readable_from_any_offset(tmp_path: Path, writes: list[tuple[Stream, bytes]], offset: int) -> None:
    """The rest is returned byte for byte and per stream, from any offset."""
    log = CommandLog(tmp_path, "exc-1", lambda _size: True)
    for stream, data in writes:
        log.add(stream, data)
    want = [(stream, bytes([byte])) for stream, data in writes for byte in data][offset:]
    assert [(stream, bytes([byte])) for stream, data in read(log, offset) for byte in data] == want
    log.remove()


def test_many_small_pieces_come_in_several_replies(log: CommandLog) -> None:
    """A reply has a limited number of pieces, because each piece takes more space than its bytes."""
    for number in range(2000):
        log.add("stdout" if number % 2 else "stderr", b"x")
    assert len(log.read(0)) < 2000
    assert len(read(log)) == 2000


def test_output_beyond_the_cap_is_counted(log: CommandLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output up to the limit is stored, and the rest is counted."""
    monkeypatch.setattr(module, "MAX_STORED_BYTES", 100)
    for _ in range(3):
        log.add("stdout", b"x" * 60)
    assert (log.size, log.dropped) == (100, 80)
    assert read(log) == [("stdout", b"x" * 100)]


def test_output_without_space_is_counted_but_not_stored(tmp_path: Path) -> None:
    """All of the output counts as dropped."""
    log = CommandLog(tmp_path, "exc-1", lambda _size: False)
    log.add("stdout", b"xyz")
    assert (log.size, log.dropped, log.read(0)) == (0, 3, [])
    log.remove()


def test_unfinished_command_is_known_after_its_worker(tmp_path: Path) -> None:
    """The command is listed until it ends or is removed; its output is readable afterwards."""
    first, second = (CommandLog(tmp_path, name, lambda _size: True) for name in ("exc-1", "exc-2"))
    first.add("stdout", b"x")
    assert unfinished(tmp_path) == ["exc-1", "exc-2"]
    first.end()
    assert unfinished(tmp_path) == ["exc-2"]
    assert read(first) == [("stdout", b"x")]
    second.remove()
    first.remove()
    assert list((tmp_path / "exec").iterdir()) == []
    assert unfinished(tmp_path / "nowhere") == []
