"""The work tree: every change is seen, told for what it is, and only once."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.ignore import Ignored
from sandherd_worker.tree import FileChange, WorkTree


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def look(tree: WorkTree) -> dict[str, tuple[str, int, int]]:
    return {one.path: (one.kind, one.change.added, one.change.removed) for one in tree.changes()}


def started(work: Path) -> WorkTree:
    tree = WorkTree(work, work.parent / "store")
    tree.take_baseline()
    return tree


def test_what_was_there_before_is_no_change(work: Path) -> None:
    """Files put there before the agent starts are the base line."""
    (work / "a.txt").write_text("a\n")
    assert started(work).changes() == []


def test_a_shells_edits_are_seen_for_what_they_are(work: Path) -> None:
    """Created, modified, deleted, with their lines; each once."""
    for name in ("keep", "edit", "gone"):
        (work / name).write_text("one\ntwo\n")
    tree = started(work)
    script = "echo three >> edit; sed -i s/one/ONE/ edit; rm gone; mkdir d; echo new > d/new"
    subprocess.run(script, shell=True, cwd=work, check=True)
    assert look(tree) == {"edit": ("modified", 2, 1), "gone": ("deleted", 0, 2), "d/new": ("created", 1, 0)}
    assert tree.changes() == []


def test_a_file_written_again_within_the_same_tick_is_seen(work: Path, monkeypatch: Any) -> None:
    """Same size, same time stamps: only its content tells, and it is looked at."""
    stamp = (time.time_ns(), 2, time.time_ns() + 10**12, 1)
    monkeypatch.setattr("sandherd_worker.tree._signature", lambda _entry: stamp)
    (work / "a").write_text("1\n")
    tree = started(work)
    for text in ("2\n", "3\n"):
        (work / "a").write_text(text)
        assert look(tree) == {"a": ("modified", 1, 1)}, text


def test_a_touch_is_no_change(work: Path) -> None:
    """New time stamps with the old content are nobody's edit."""
    (work / "a").write_text("a\n")
    tree = started(work)
    os.utime(work / "a", (1, 1))
    (work / "a").chmod(0o600)
    assert tree.changes() == []


def test_a_moved_file_is_told_as_renamed(work: Path) -> None:
    """Same content, other name."""
    (work / "old.py").write_text("print(1)\n")
    tree = started(work)
    (work / "old.py").rename(work / "new.py")
    changes = tree.changes()
    assert [(one.kind, one.path, one.previous_path) for one in changes] == [("renamed", "new.py", "old.py")]


def test_links_pipes_and_unreadable_names_do_no_harm(work: Path) -> None:
    """A link is what it points to and is not followed out of the tree; a pipe is not waited for."""
    tree = started(work)
    (work / "link").symlink_to("/etc/passwd")
    (work / "loop").symlink_to(work)
    os.mkfifo(work / "pipe")
    (work / os.fsdecode(b"\xff\xfe")).write_text("x\n")
    changes = {one.path: one for one in tree.changes()}
    assert "pipe" not in changes
    assert not any(path.startswith("loop/") for path in changes)
    assert changes["link"].change.diff is not None
    assert "/etc/passwd" in changes["link"].change.diff
    assert "root:" not in changes["link"].change.diff


def test_binary_and_large_files_are_seen_without_a_diff(work: Path) -> None:
    """Created and changed; the note says why there is no diff."""
    tree = started(work)
    (work / "image").write_bytes(b"\x89PNG\0" * 10)
    (work / "large").write_bytes(b"x" * 2_000_000)
    first = {one.path: one for one in tree.changes()}
    assert first["image"].change.binary
    assert "2000000 bytes" in first["large"].change.note
    with (work / "large").open("ab") as file:
        file.write(b"y")
    assert [(one.path, one.kind) for one in tree.changes()] == [("large", "modified")]


def test_what_is_ignored_is_not_told_also_when_it_becomes_so(work: Path) -> None:
    """Neither git's own files nor what `.gitignore` names; a new rule is no deletion."""
    (work / "build.log").write_text("x\n")
    tree = started(work)
    (work / ".git").mkdir()
    (work / ".git" / "HEAD").write_text("ref\n")
    (work / "node_modules" / "x").mkdir(parents=True)
    (work / "node_modules" / "x" / "y.js").write_text("1\n")
    (work / ".gitignore").write_text("*.log\n")
    assert look(tree) == {".gitignore": ("created", 1, 0)}


RULES = "*.log\n/top\nsub/*.tmp\ncache/\n!keep.log\n**/deep/x\na?c\n[0-9]z\nlogs/**\n# comment\n\n\\#hash\n"


@pytest.mark.parametrize(
    ("path", "directory", "ignored"),
    [
        ("a.log", False, True),
        ("d/a.log", False, True),
        ("keep.log", False, False),
        ("top", False, True),
        ("d/top", False, False),
        ("sub/a.tmp", False, True),
        ("d/sub/a.tmp", False, False),
        ("cache", True, True),
        ("d/cache", True, True),
        ("cache", False, False),
        ("p/deep/x", False, True),
        ("deep/x", False, True),
        ("abc", False, True),
        ("abbc", False, False),
        ("1z", False, True),
        ("az", False, False),
        ("logs/a/b", False, True),
        ("#hash", False, True),
        (".git", True, True),
        ("d/__pycache__", True, True),
    ],
)
def test_gitignores_rules(path: str, directory: bool, ignored: bool) -> None:
    """The patterns mean what they mean to git."""
    assert Ignored(RULES)(path, directory=directory) is ignored


@pytest.mark.parametrize("rule", ["[", "[]", "[z-a]", "\\", "!", "/", "**", "***", "(", "+?", "{a,b}"])
def test_a_senseless_rule_does_no_harm(rule: str) -> None:
    """An agent may write anything into `.gitignore`."""
    Ignored(rule)("a/b", directory=False)


def test_earlier_contents_have_a_bound(work: Path, monkeypatch: Any) -> None:
    """Beyond it a change is still told, with the reason why its lines are not."""
    monkeypatch.setattr("sandherd_worker.tree._KEPT_BYTES", 10)
    (work / "a").write_text("0123456789abc\n")
    tree = started(work)
    (work / "a").write_text("changed it\n")
    found: list[FileChange] = tree.changes()
    assert [(one.kind, one.change.diff) for one in found] == [("modified", None)]
    assert "no earlier copy" in found[0].change.note
