"""The work tree: every change is reported once and with the right kind."""

import hashlib
import os
import struct
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.file_diffs import MAX_DIFF_BYTES
from sandherd_worker.redaction import Redactor
from sandherd_worker.storable_text import valid_text
from sandherd_worker.work_tree import FileChange, WorkTree


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def changes(tree: WorkTree) -> list[FileChange]:
    return list(tree.changes())


def look(tree: WorkTree) -> dict[str, tuple[str, int, int]]:
    return {one.path: (one.kind, one.change.added, one.change.removed) for one in tree.changes()}


def started(work: Path) -> WorkTree:
    tree = WorkTree(work, work.parent / "store")
    tree.take_baseline()
    return tree


def test_files_before_the_start_are_no_change(work: Path) -> None:
    """Files put there before the agent starts are the baseline."""
    (work / "a.txt").write_text("a\n")
    assert changes(started(work)) == []


def test_edits_of_a_shell_are_reported_by_kind(work: Path) -> None:
    """Created, modified and deleted files are reported once, with their lines."""
    for name in ("keep", "edit", "gone"):
        (work / name).write_text("one\ntwo\n")
    tree = started(work)
    script = "echo three >> edit; sed -i s/one/ONE/ edit; rm gone; mkdir d; echo new > d/new"
    subprocess.run(script, shell=True, cwd=work, check=True)
    assert look(tree) == {"edit": ("modified", 2, 1), "gone": ("deleted", 0, 2), "d/new": ("created", 1, 0)}
    assert changes(tree) == []


def test_file_rewritten_within_one_tick_is_reported(work: Path, monkeypatch: Any) -> None:
    """Size and timestamps are equal: only its content differs, and it is compared."""
    stamp = struct.pack("<qqQq", time.time_ns(), 2, 1, time.time_ns() + 10**12)
    monkeypatch.setattr("sandherd_worker.work_tree.signature_of", lambda _entry: stamp)
    (work / "a").write_text("1\n")
    tree = started(work)
    for text in ("2\n", "3\n"):
        (work / "a").write_text(text)
        assert look(tree) == {"a": ("modified", 1, 1)}, text


def test_digest_is_that_of_the_content_after_the_change(work: Path) -> None:
    """A file that returns to an earlier content has its digest again; binary, renamed and linked ones have one, too."""
    tree = started(work)
    for content in (b"one\n", b"two\n", b"one\n", b"\0\xff"):
        (work / "a").write_bytes(content)
        assert [one.sha256 for one in changes(tree)] == [hashlib.sha256(content).hexdigest()]
    (work / "a").rename(work / "b")
    assert [one.sha256 for one in changes(tree)] == [hashlib.sha256(b"\0\xff").hexdigest()]
    (work / "b").unlink()
    (work / "c").symlink_to("target")
    assert [one.sha256 for one in changes(tree)] == [None, hashlib.sha256(b"target").hexdigest()]
    (work / "large").write_bytes(b"x" * (MAX_DIFF_BYTES + 1))
    assert [one.sha256 for one in changes(tree)] == [None]


def test_digest_of_a_content_with_a_secret_is_without_it(work: Path) -> None:
    """A digest of content with a secret is of the masked content, from which it can't be guessed; others are exact."""
    redactor = Redactor(["hunter22"])
    tree = WorkTree(work, work.parent / "store", lambda text: redactor.lines(valid_text(text)))
    tree.take_baseline()
    (work / "a").write_text("key: hunter22")
    (work / "b").write_bytes(b"\0 no secret \xff")
    digests = [hashlib.sha256(content).hexdigest() for content in (b"key: [redacted]", b"\0 no secret \xff")]
    assert [one.sha256 for one in changes(tree)] == digests


def test_changed_timestamp_is_no_change(work: Path) -> None:
    """New timestamps and modes with the old content are not reported."""
    (work / "a").write_text("a\n")
    tree = started(work)
    os.utime(work / "a", (1, 1))
    (work / "a").chmod(0o600)
    assert changes(tree) == []


def test_moved_file_is_reported_as_renamed(work: Path) -> None:
    """A file with the same content and another name is renamed."""
    (work / "old.py").write_text("print(1)\n")
    tree = started(work)
    (work / "old.py").rename(work / "new.py")
    assert [(one.kind, one.path, one.previous_path) for one in changes(tree)] == [("renamed", "new.py", "old.py")]


def test_links_pipes_and_unreadable_names_do_no_harm(work: Path) -> None:
    """A link is its target and is not followed out of the tree; a pipe does not block."""
    tree = started(work)
    (work / "link").symlink_to("/etc/passwd")
    (work / "loop").symlink_to(work)
    os.mkfifo(work / "pipe")
    (work / os.fsdecode(b"\xff\xfe")).write_text("x\n")
    found = {one.path: one for one in tree.changes()}
    assert "pipe" not in found
    assert not any(path.startswith("loop/") for path in found)
    assert found["link"].change.diff is not None
    assert "/etc/passwd" in found["link"].change.diff
    assert "root:" not in found["link"].change.diff


def test_binary_and_large_files_are_reported_without_a_diff(work: Path) -> None:
    """Creation and change are reported, with a note that states why there is no diff."""
    tree = started(work)
    (work / "image").write_bytes(b"\x89PNG\0" * 10)
    (work / "large").write_bytes(b"x" * 2_000_000)
    first = {one.path: one for one in tree.changes()}
    assert first["image"].change.binary
    assert "2000000 bytes" in first["large"].change.note
    with (work / "large").open("ab") as file:
        file.write(b"y")
    assert [(one.path, one.kind) for one in tree.changes()] == [("large", "modified")]


def test_ignored_file_is_not_reported(work: Path) -> None:
    """Git's own files and what `.gitignore` names are left out; a new rule is no deletion."""
    (work / "build.log").write_text("x\n")
    tree = started(work)
    (work / ".git").mkdir()
    (work / ".git" / "HEAD").write_text("ref\n")
    (work / "node_modules" / "x").mkdir(parents=True)
    (work / "node_modules" / "x" / "y.js").write_text("1\n")
    (work / ".gitignore").write_text("*.log\n")
    assert look(tree) == {".gitignore": ("created", 1, 0)}


def test_earlier_contents_are_bounded(work: Path, monkeypatch: Any) -> None:
    """Above the limit, a change is still reported, with the reason why it has no diff."""
    monkeypatch.setattr("sandherd_worker.work_tree._MAX_CONTENT_BYTES", 10)
    (work / "a").write_text("0123456789abc\n")
    tree = started(work)
    (work / "a").write_text("changed it\n")
    found = changes(tree)
    assert [(one.kind, one.change.diff) for one in found] == [("modified", None)]
    assert "no earlier copy" in found[0].change.note


def test_moved_file_is_recognised(work: Path) -> None:
    """The content may be empty, common, binary or too large to be read; its directory may be moved."""
    for name, content in {"a/__init__.py": b"", "a/x.py": b"same\n", "a/y.py": b"same\n"}.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(content)
    (work / "a/image").write_bytes(b"\x89PNG\0" * 10)
    with (work / "a/huge").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    tree = started(work)
    (work / "a").rename(work / "b")
    found = {one.path: (one.kind, one.previous_path, one.change.binary) for one in tree.changes()}
    assert found == {
        f"b/{name}": ("renamed", f"a/{name}", name in {"image", "huge"})
        for name in ("__init__.py", "x.py", "y.py", "image", "huge")
    }
    assert changes(tree) == []


def test_copy_that_replaces_its_original_is_a_rename(work: Path) -> None:
    """As in git, the content is the same, though the file is not."""
    (work / "old").write_text("one\ntwo\n")
    tree = started(work)
    subprocess.run("cp old new; rm old", shell=True, cwd=work, check=True)
    assert [(one.kind, one.path, one.previous_path) for one in changes(tree)] == [("renamed", "new", "old")]
    (work / "new").write_text("one\nTWO\n")
    assert look(tree) == {"new": ("modified", 1, 1)}


def test_file_moved_over_another_deletes_one(work: Path) -> None:
    """The source is deleted, the target modified."""
    (work / "a").write_text("a\n")
    (work / "b").write_text("b\n")
    tree = started(work)
    (work / "a").replace(work / "b")
    assert look(tree) == {"a": ("deleted", 0, 1), "b": ("modified", 1, 1)}


def test_file_that_vanishes_during_a_scan_is_reported_correctly(work: Path) -> None:
    """A known file is deleted, a new one never existed; each is read when its turn comes."""
    (work / "known").write_text("k\n")
    tree = started(work)
    (work / "a").write_text("a\n")
    (work / "known").write_text("other\n")
    (work / "new").write_text("n\n")
    looking = tree.changes()
    first = next(looking)
    (work / "known").unlink()
    (work / "new").unlink()
    rest = {one.path: one.kind for one in looking}
    assert (first.path, first.kind) == ("a", "created")
    assert rest == {"known": "deleted"}
    assert changes(tree) == []


def test_unreadable_file_is_not_reported_as_deleted(work: Path, monkeypatch: Any) -> None:
    """A closed directory hides its files; a closed file is reported once, with the reason for no diff."""
    (work / "d" / "e").mkdir(parents=True)
    (work / "d" / "e" / "f").write_text("f\n")
    tree = started(work)
    scandir = os.scandir

    def refused(path: Path) -> Any:
        if str(path).rstrip("/").endswith("/d"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert changes(tree) == []
    monkeypatch.undo()
    (work / "secret").write_text("s\n")
    monkeypatch.setattr("sandherd_worker.work_tree.content_of", lambda _path, _signature: None)
    assert [(one.path, one.kind, one.change.note) for one in tree.changes()] == [
        ("secret", "created", "not read: 2 bytes")
    ]
    assert changes(tree) == []


def test_file_of_100_mb_is_never_read_whole(work: Path) -> None:
    """The change is reported, with size and whether it is binary; the memory used stays small."""
    tree = started(work)
    with (work / "big").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    tracemalloc.start()
    try:
        [created] = tree.changes()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (created.kind, created.change.binary, created.change.note) == ("created", True, "not read: 104857600 bytes")
    assert peak < 4 * 1024 * 1024


def test_many_files_are_reported_without_holding_all(work: Path) -> None:
    """Each file is read when it is requested: together they would take 64 MB."""
    tree = started(work)
    (work / "first").write_text("x" * 64_000 + "\n")
    for number in range(1000):
        (work / f"d{number % 100}").mkdir(exist_ok=True)
        (work / f"d{number % 100}" / f"f{number}").hardlink_to(work / "first")
    tracemalloc.start()
    try:
        created_count = sum(one.kind == "created" and one.change.added == 1 for one in tree.changes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert created_count == 1001
    assert peak < 16 * 1024 * 1024


def test_files_beyond_the_limit_are_not_watched(work: Path, monkeypatch: Any) -> None:
    """Files beyond the limit are not watched, and `too_many` is set."""
    monkeypatch.setattr("sandherd_worker.work_tree.MAX_FILES", 2)
    for name in "abc":
        (work / name).write_text(name)
    tree = started(work)
    assert tree.too_many
    for name in "abc":
        (work / name).write_text("changed")
    assert len(changes(tree)) == 2


def test_earlier_contents_use_no_more_space_than_needed(work: Path) -> None:
    """However often a file is written, its earlier content is still known afterwards."""
    (work / "other").write_text("other\n")
    tree = started(work)
    for number in range(40):
        (work / "a").write_text(f"{number:99}\n" * 4000)
        assert len(changes(tree)) == 1
    assert tree._earlier_contents._end < 2 * 1024 * 1024
    (work / "a").write_text(f"{39:99}\n" * 3999)
    (work / "other").unlink()
    assert look(tree) == {"a": ("modified", 0, 1), "other": ("deleted", 0, 1)}


def test_file_on_a_full_disk_is_reported_without_a_diff(work: Path, monkeypatch: Any) -> None:
    """The state directory may be full; changes are reported nevertheless."""
    tree = started(work)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    (work / "a").write_text("a\n")
    assert look(tree) == {"a": ("created", 1, 0)}
    (work / "a").write_text("b\n")
    [changed] = changes(tree)
    assert (changed.kind, changed.change.note) == ("modified", "no earlier copy was stored to compare with")


def test_file_is_reported_under_its_final_name(work: Path) -> None:
    """While Claude Code writes a file it has a temporary name; a file that keeps it is reported by the last scan."""
    tree = started(work)
    writing = work / "heron.txt.tmp.23291.13e50fcb4bac"
    writing.write_text("two\n")
    assert changes(tree) == []
    writing.rename(work / "heron.txt")
    assert look(tree) == {"heron.txt": ("created", 1, 0)}
    (work / "x.tmp.1.000000000000").write_text("one\n")
    assert changes(tree) == []
    assert [one.path for one in tree.changes(last=True)] == ["x.tmp.1.000000000000"]
    assert [one.path for one in tree.changes()] == []
