"""An agent's session as an artifact: redacted, stored only if new, and only from permitted paths."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker import session_store
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.session_store import SessionStore
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind


@pytest.fixture
def stored(spool: Spool, emitter: Emitter, tmp_path: Path, assignment: Callable[..., Assignment]) -> SessionStore:
    for folder in ("work", "home", "state/driver", "state/spool"):
        (tmp_path / folder).mkdir(parents=True)
    own = {"SANDHERD_WORK_DIR": str(tmp_path / "work"), "HOME": str(tmp_path / "home")}
    return SessionStore(assignment(tmp_path / "state", **own), emitter, spool)


def saved(spool: Spool, published_of: Any) -> list[str | None]:
    return [event.data.session_id for event in published_of(spool) if event.type == "agent.transcript_saved"]


async def test_session_is_stored_without_secrets(
    stored: SessionStore, spool: Spool, published_of: Any, records: Any, tmp_path: Path
) -> None:
    """Values of secret variables and known forms of tokens are redacted; every other byte is unchanged."""
    path = tmp_path / "state" / "driver" / "session.jsonl"
    path.write_bytes(
        b'{"text":"it is hunter2-hunter2"}\n' + b"x" * 200_000 + b" sk-ant-abcdefghijklmnopqrstuvwxyz \xff\n"
    )
    await stored.store(path, "session-1")
    whole = b"".join(one.payload for one in records(spool) if one.kind is RecordKind.ARTIFACT)
    assert whole == b'{"text":"it is [redacted]"}\n' + b"x" * 200_000 + b" [redacted] \xff\n"
    assert saved(spool, published_of) == ["session-1"]


async def test_unchanged_session_is_stored_once(
    stored: SessionStore, spool: Spool, published_of: Any, tmp_path: Path
) -> None:
    """A turn that added nothing stores nothing; one that did stores the whole."""
    path = tmp_path / "home" / "session.jsonl"
    for content in ("one", "one", "one two"):
        path.write_text(content)
        await stored.store(path, "session-1")
    assert saved(spool, published_of) == ["session-1", "session-1"]


@pytest.mark.parametrize(
    "name",
    [
        "outside",
        "state/joiner.creds",
        "state/spool/1",
        "state/driver",
        "state/driver/pipe",
        "state/driver/link",
        "gone",
        "work/round",
        "work/a\0b",
        "work/\ud800",
        f"work/{'x' * 300}",
    ],
)
async def test_session_outside_the_permitted_folders_is_refused(
    stored: SessionStore, spool: Spool, published_of: Any, tmp_path: Path, name: str
) -> None:
    """A session file of the worker or the host, a folder and a pipe are reported and not stored; nothing blocks."""
    for secret in (tmp_path / "outside", tmp_path / "state" / "joiner.creds", tmp_path / "state" / "spool" / "1"):
        secret.write_text("the key")
    os.mkfifo(tmp_path / "state" / "driver" / "pipe")
    (tmp_path / "work" / "round").symlink_to("round")
    (tmp_path / "state" / "driver" / "link").symlink_to(tmp_path / "state" / "joiner.creds")
    await stored.store(tmp_path / name, "session-1")
    assert [event.type for event in published_of(spool)] == ["agent.error"]
    assert published_of(spool)[0].data.phase == "transcript"


async def test_oversized_session_is_reported(
    stored: SessionStore, spool: Spool, published_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is too large is reported, and no part of it is stored."""
    monkeypatch.setattr(session_store, "_MAX_BYTES", 1000)
    (tmp_path / "work" / "session").write_text("x" * 2000)
    await stored.store(tmp_path / "work" / "session", "session-1")
    assert "larger than 1000 bytes" in published_of(spool)[0].data.error


async def test_disk_without_space_for_a_copy_is_reported(
    stored: SessionStore, spool: Spool, published_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at the last write is reported too, and the agent continues."""
    path = tmp_path / "work" / "session.jsonl"
    path.write_text("one")
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("w+b"))
    await stored.store(path, "session-1")
    (event,) = published_of(spool)
    assert (event.type, event.data.phase) == ("agent.error", "transcript")
    assert "No space left on device" in event.data.error
