"""Work stored for the next attempt: bounded by space and time, and never at the expense of events."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandherd.archives.writer import ArchiveSummary, pack
from sandherd_worker import work_snapshot
from sandherd_worker.emitter import Emitter
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind
from sandherd_worker.work_snapshot import OutputTranscript, WorkSaver, time_to_save
from sandherd_worker.worker_exit import StopRequest


@pytest.fixture
def keeping(spool: Spool, tmp_path: Path, assignment: Any) -> WorkSaver:
    who = assignment(tmp_path)
    who.work_dir.mkdir()
    return WorkSaver(who, Emitter(spool, who, Redactor()), spool)


async def test_chunks_precede_the_event_that_names_them(
    keeping: WorkSaver, tmp_path: Path, spool: Spool, records: Any, published_of: Any
) -> None:
    """The chunks come before the event that names them, and restore the tree."""
    content = os.urandom(300_000)
    (tmp_path / "work/a").write_bytes(content)
    await keeping.save_work(lambda: False)
    kinds = [record.kind for record in records(spool)]
    assert kinds == [RecordKind.ARTIFACT] * 3 + [RecordKind.EVENT]
    reference = published_of(spool)[0].data.artifact
    archive = b"".join(record.payload for record in records(spool)[:3])
    assert (reference.size, reference.chunks) == (len(archive), 3)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.extractfile("a").read() == content  # type: ignore[union-attr]  # is a file


async def test_ignored_files_are_left_out_but_not_the_repository(
    keeping: WorkSaver, tmp_path: Path, spool: Spool, records: Any
) -> None:
    """Ignore lists of subfolders count too; no rule leaves out a part of `.git`."""
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


async def test_late_save_is_reported_instead_of_done(
    keeping: WorkSaver, tmp_path: Path, spool: Spool, published_of: Any
) -> None:
    """The event states that there was no time, rather than that the sandbox is killed."""
    (tmp_path / "work/a").write_text("x")
    await keeping.save_work(lambda: True)
    data = published_of(spool)[0].data
    assert (data.artifact, "had to end" in data.left_out) == (None, True)


async def test_save_is_late_after_most_of_the_grace(tmp_path: Path, assignment: Any) -> None:
    """Time counts from SIGTERM, and not before."""
    stop = StopRequest()
    short, long = (time_to_save(assignment(tmp_path, SANDHERD_STOP_GRACE=grace), stop) for grace in ("1e-9", "3600"))
    assert not short()
    stop.terminate()
    assert short()
    assert not long()


async def test_empty_tree_is_not_saved(keeping: WorkSaver, tmp_path: Path, spool: Spool, published_of: Any) -> None:
    """A tree with only ignored files is not saved either."""
    await keeping.save_work(lambda: False)
    (tmp_path / "work/node_modules").mkdir()
    (tmp_path / "work/node_modules/a.js").write_text("x")
    await keeping.save_work(lambda: False)
    await keeping.save_transcript(b"")
    assert published_of(spool) == []


async def test_unreadable_files_are_named_with_the_archive(
    keeping: WorkSaver, tmp_path: Path, spool: Spool, published_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive of the other files is stored."""

    def misses(*given: Any, **more: Any) -> Any:
        return ArchiveSummary(pack(*given, **more).files, ("secret/\udcff",))

    monkeypatch.setattr(work_snapshot, "pack", misses)
    (tmp_path / "work/a").write_text("x")
    await keeping.save_work(lambda: False)
    data = published_of(spool)[0].data
    assert data.artifact is not None
    assert "1 entries could not be read" in data.left_out


def test_transcript_retains_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is the same however the output came, also for a worker that finds it later."""
    monkeypatch.setattr(work_snapshot, "_MAX_TRANSCRIPT_BYTES", 1000)
    transcript = OutputTranscript(tmp_path)
    assert transcript.read() == b""
    whole = b""
    for number in range(500):
        piece = f"{number} ".encode() * (number % 7)
        whole += piece
        transcript.add(piece)
        assert OutputTranscript(tmp_path).read() == whole[-1000:]
    transcript.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000
