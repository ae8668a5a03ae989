"""What is put by for the next attempt: bounded by room and time, and never at the cost of what is said."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker import saving
from sandherd_worker.archive import Packed, pack
from sandherd_worker.emitter import Emitter
from sandherd_worker.redaction import Redactor
from sandherd_worker.saving import Keeping, Transcript, time_to_save
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import Kind
from sandherd_worker.stopping import Stop


@pytest.fixture
def keeping(spool: Spool, tmp_path: Path, assignment: Any) -> Keeping:
    who = assignment(tmp_path)
    who.work_dir.mkdir()
    return Keeping(who, Emitter(spool, who, Redactor()), spool)


async def test_the_pieces_come_before_the_event_that_names_them(
    keeping: Keeping, tmp_path: Path, spool: Spool, records: Any, said: Any
) -> None:
    """And give the tree back."""
    content = os.urandom(300_000)
    (tmp_path / "work/a").write_bytes(content)
    await keeping.save_work(lambda: False)
    kinds = [record.kind for record in records(spool)]
    assert kinds == [Kind.ARTIFACT] * 3 + [Kind.EVENT]
    reference = said(spool)[0].data.artifact
    archive = b"".join(record.payload for record in records(spool)[:3])
    assert (reference.size, reference.chunks) == (len(archive), 3)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.extractfile("a").read() == content  # type: ignore[union-attr]  # is a file


async def test_what_git_ignores_is_left_out_and_what_git_keeps_is_not(
    keeping: Keeping, tmp_path: Path, spool: Spool, records: Any
) -> None:
    """By the lists further down, too; and no rule takes a part out of the repository."""
    files = {".gitignore": "*.o\nconfig\n", "src/.gitignore": "!keep.o\ngen/\n", ".git/config": "", ".git/a.o": ""}
    files |= {"a.o": "", "config": "", "src/a.o": "", "src/keep.o": "", "src/gen/x": "", "src/b.c": ""}
    for name, text in files.items():
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(text)
    await keeping.save_work(lambda: False)
    archive = b"".join(record.payload for record in records(spool)[:-1])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        packed = {info.name for info in tar if not info.isdir()}
    assert packed == {".gitignore", "src/.gitignore", ".git/config", ".git/a.o", "src/keep.o", "src/b.c"}


async def test_when_it_is_too_late_that_is_said(keeping: Keeping, tmp_path: Path, spool: Spool, said: Any) -> None:
    """Rather than that the sandbox is killed over it."""
    (tmp_path / "work/a").write_text("x")
    await keeping.save_work(lambda: True)
    data = said(spool)[0].data
    assert (data.artifact, "had to end" in data.left_out) == (None, True)


async def test_it_is_too_late_when_most_of_the_grace_is_gone(tmp_path: Path, assignment: Any) -> None:
    """Not before SIGTERM, however long it takes."""
    stop = Stop()
    short, long = (time_to_save(assignment(tmp_path, SANDHERD_STOP_GRACE=grace), stop) for grace in ("1e-9", "3600"))
    assert not short()
    stop.terminate()
    assert short()
    assert not long()


async def test_an_empty_tree_is_nothing_to_say(keeping: Keeping, tmp_path: Path, spool: Spool, said: Any) -> None:
    """Nor is one of which all is ignored."""
    await keeping.save_work(lambda: False)
    (tmp_path / "work/node_modules").mkdir()
    (tmp_path / "work/node_modules/a.js").write_text("x")
    await keeping.save_work(lambda: False)
    await keeping.save_transcript(b"")
    assert said(spool) == []


async def test_what_could_not_be_read_is_said_with_the_rest(
    keeping: Keeping, tmp_path: Path, spool: Spool, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is not lost for it."""

    def misses(*given: Any, **more: Any) -> Any:
        return Packed(pack(*given, **more).files, ("secret/\udcff",))

    monkeypatch.setattr(saving, "pack", misses)
    (tmp_path / "work/a").write_text("x")
    await keeping.save_work(lambda: False)
    data = said(spool)[0].data
    assert data.artifact is not None
    assert "1 entries could not be read" in data.left_out


def test_a_transcript_keeps_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came, also for a worker that finds it later."""
    monkeypatch.setattr(saving, "_LONGEST_TRANSCRIPT", 1000)
    transcript = Transcript(tmp_path)
    assert transcript.read() == b""
    whole = b""
    for number in range(500):
        piece = f"{number} ".encode() * (number % 7)
        whole += piece
        transcript.add(piece)
        assert Transcript(tmp_path).read() == whole[-1000:]
    transcript.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000
