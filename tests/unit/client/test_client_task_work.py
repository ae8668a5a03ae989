"""The files that a task begins with are packed on this machine."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandherd.cli.parse.task_spec import read_files
from sandherd.cli.parse.work_source import split
from sandherd.client.errors import HerdError
from sandherd.client.task_work import pack_work
from sandherd.client.work_source import WorkSource
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import MAX_FILES_BYTES

BINARY = bytes(range(256)) * 8


def packed(work: WorkSource, limit: int | None = None) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    pack_work(work, out, limit)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {entry.name: entry for entry in tar}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with what git ignores, a binary file, a program, a link, and a nested list of ignored files."""
    root = tmp_path / "repository"
    for name, content in {
        ".gitignore": b"*.log\n/build/\n",
        ".git/config": b"[remote]\n\turl = https://user:secret@host\n",
        "blob.bin": BINARY,
        "notes.log": b"x",
        "build/out": b"x",
        "src/.gitignore": b"!kept.log\n",
        "src/kept.log": b"x",
        "src/run.sh": b"#!/bin/sh\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "src/run.sh").chmod(0o755)
    (root / "link").symlink_to("src/run.sh")
    return root


def test_folder_is_packed_without_ignored_files(folder: Path) -> None:
    """The git directory, which may contain credentials, is left out too; modes and links are preserved."""
    entries = packed(WorkSource(folder))
    assert entries.keys() == {".gitignore", "blob.bin", "src", "src/.gitignore", "src/kept.log", "src/run.sh", "link"}
    assert entries["blob.bin"].size == len(BINARY)
    assert entries["src/run.sh"].mode & 0o111
    assert entries["link"].linkname == "src/run.sh"
    assert {(entry.uid, entry.uname) for entry in entries.values()} == {(0, "")}


def test_links_that_lead_out_are_left_out_and_named(folder: Path) -> None:
    """The sandbox would not have their targets; its worker leaves such links out, too."""
    for name, target in {"absolute": "/etc/passwd", "up": "..", "src/over": "../../x", "src/inside": "../link"}.items():
        (folder / name).symlink_to(target)
    links: dict[str, str] = {}
    out = io.BytesIO()
    pack_work(WorkSource(folder), out, None, links.__setitem__)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert {entry.name for entry in tar if entry.issym()} == {"link", "src/inside"}
    assert links == {"absolute": "/etc/passwd", "up": "..", "src/over": "../../x"}


def test_single_files_are_added(folder: Path, tmp_path: Path) -> None:
    """Files are added beside a folder or without one, in folders of their own names."""
    for work in (
        WorkSource(folder, {"in/data.bin": folder / "blob.bin"}),
        WorkSource(None, {"in/data.bin": folder / "blob.bin"}),
    ):
        entries = packed(work)
        assert entries["in"].isdir()
        assert entries["in/data.bin"].size == len(BINARY)
    assert "src/run.sh" in packed(WorkSource(folder, {"x": folder / "blob.bin"}))


def test_oversized_or_special_file_is_refused(folder: Path, tmp_path: Path) -> None:
    """The refusal names it, before any request."""
    for work in (WorkSource(folder), WorkSource(None, {"x": folder / "blob.bin"})):
        with pytest.raises(HerdError) as caught:
            packed(work, limit=1000)
        assert caught.value.problem.code is Code.TOO_LARGE
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none"):
        with pytest.raises(HerdError) as caught:
            packed(WorkSource(None, {"x": path}))
        assert path.name in str(caught.value)


def test_file_replaces_an_entry_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """It also replaces a link, or one of several hard links without changing the others. A name is packed once."""
    os.link(folder / "blob.bin", folder / "blob2.bin")
    extra = tmp_path / "extra"
    extra.write_bytes(b"extra")
    out = io.BytesIO()
    pack_work(WorkSource(folder, {"link": extra, "blob.bin": extra}), out, None)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert sorted(tar.getnames()) == sorted(set(tar.getnames()))
        contents = {entry.name: (entry.type, entry.size) for entry in tar if not entry.isdir()}
    assert contents["link"] == contents["blob.bin"] == (tarfile.REGTYPE, 5)
    assert contents["blob2.bin"] == (tarfile.REGTYPE, len(BINARY))


@pytest.mark.parametrize("names", [("blob.bin/x",), ("link/x",), ("src",), ("in", "in/x")])
def test_file_where_a_folder_is_needed_is_refused(folder: Path, names: tuple[str, ...]) -> None:
    """A parent that is no folder, or a folder of the file's name, would fail in the sandbox."""
    with pytest.raises(HerdError, match="folder") as caught:
        packed(WorkSource(folder, dict.fromkeys(names, folder / "blob.bin")))
    assert (caught.value.problem.code, caught.value.problem.field) == (Code.INVALID_FIELD, "files")


def test_oversized_file_is_not_copied(folder: Path) -> None:
    """The size is checked before the file is read."""
    out = io.BytesIO()
    with pytest.raises(HerdError, match="maximum size"):
        pack_work(WorkSource(None, {"x": folder / "blob.bin"}), out, 1000)
    assert len(out.getvalue()) < len(BINARY)


def test_full_temporary_folder_is_named() -> None:
    """The error names the full temporary folder, not the folder to upload."""
    device = Path("/dev/full")
    with device.open("wb", buffering=0) as out, pytest.raises(HerdError, match="does not fit into") as caught:
        pack_work(WorkSource(Path(__file__).parent), out, None)
    assert caught.value.problem.code is Code.UNAVAILABLE
    assert "TMPDIR" in (caught.value.problem.remedy or "")


def test_small_texts_are_part_of_the_spec_and_others_uploaded(folder: Path, tmp_path: Path) -> None:
    """A text is uploaded if it is with a binary file, over the limit, or beside a folder."""
    text, large = tmp_path / "agent.py", tmp_path / "large.txt"
    text.write_text("print(1)\n")
    large.write_text("x" * MAX_FILES_BYTES)
    assert split([text], None) == ([text], WorkSource())
    assert split([], None) == ([], WorkSource())
    for files, beside in (([text, folder / "blob.bin"], None), ([text, large], None), ([text], folder)):
        inline, work = split(files, beside)
        assert inline == []
        assert work == WorkSource(beside, {path.name: path for path in files})
    with pytest.raises(HerdError, match="two files are named"):
        split([text, Path("/elsewhere/agent.py")], folder)
    with pytest.raises(HerdError, match=r"agent\.py is a file, not a folder"):
        split([], text)
    with pytest.raises(HerdError, match="nosuch does not exist"):
        split([], tmp_path / "nosuch")


def test_pipe_is_read_once() -> None:
    """A pipe, as of `--file <(command)` or `--file /dev/stdin`, would be empty if it were read again."""
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    try:
        small, _ = split([Path(f"/dev/fd/{reading}")], None)
        assert list(read_files(small).values()) == ["text"]
    finally:
        os.close(reading)
