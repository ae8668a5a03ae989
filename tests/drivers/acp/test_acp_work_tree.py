"""The files that an agent may ask for: those in the work tree, whatever the path looks like."""

import os
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from sandherd_drivers.acp.work_tree import RefusedPathError, WorkTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (root := tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("not yours")
    return root


@pytest.fixture
def tree(root: Path) -> WorkTree:
    return WorkTree(root)


def test_reading_and_writing(root: Path, tree: WorkTree) -> None:
    """A file is written, with the folders on its way, written over, and read."""
    path = str(root / "src" / "new" / "a.py")
    tree.write(path, "a longer text\n")
    tree.write(path, "short\n")
    assert (root / "src/new/a.py").read_text() == "short\n"
    assert tree.read(path) == "short\n"


@pytest.mark.parametrize(
    ("line", "limit", "text"),
    [
        (None, None, "a\nb\x0c\nc\n"),
        (2, None, "b\x0c\nc\n"),
        (2, 1, "b\x0c\n"),
        (None, 2, "a\nb\x0c\n"),
        (1, 0, ""),
        (9, 9, ""),
    ],
)
def test_some_lines(root: Path, tree: WorkTree, line: int | None, limit: int | None, text: str) -> None:
    """Counted from 1; only a line feed ends one."""
    (root / "a").write_text("a\nb\x0c\nc\n")
    assert tree.read(str(root / "a"), line, limit) == text


@pytest.mark.parametrize("path", ["../secret", "x/../../secret", "/etc/passwd", "secret", ".", "", "\0"])
def test_paths_that_lead_out(root: Path, tree: WorkTree, path: str) -> None:
    """By `..`, from the root of the system, relative to nowhere, or no file at all: neither read nor written."""
    asked = path if path in {"secret", "", "\0"} else os.path.join(root, path)  # noqa: PTH118  # as an agent would
    with pytest.raises(RefusedPathError):
        tree.read(asked)
    with pytest.raises(RefusedPathError):
        tree.write(asked, "mine now")
    assert (root.parent / "secret").read_text() == "not yours"


def test_links_that_lead_out(root: Path, tree: WorkTree) -> None:
    """A link to a file or a folder outside, also one to nothing yet, is as good as the path it leads to."""
    (root / "file").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    (root / "nothing").symlink_to(root.parent / "not-yet")
    for path in ("file", "folder/secret", "nothing", "folder/new/deep"):
        with pytest.raises(RefusedPathError):
            tree.write(str(root / path), "mine now")
        with pytest.raises(RefusedPathError):
            tree.read(str(root / path))
    assert {path.name for path in root.parent.iterdir()} == {"work", "secret"}


def test_links_that_stay_inside(root: Path, tree: WorkTree) -> None:
    """They are followed; and the work tree may be named by a link itself."""
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    (linked := root.parent / "also-work").symlink_to(root)
    tree.write(str(linked / "link" / "a"), "a")
    assert (root / "real" / "a").read_text() == "a"


def test_a_link_that_appears_in_between_is_not_followed(root: Path, tree: WorkTree) -> None:
    """However often a folder is swapped for a link that leads out, nothing outside is read or written."""
    inside, over = root / "swapped", threading.Event()

    def swap() -> None:
        for number in count():
            for change in (
                lambda away=root / f"away-{number}": inside.rename(away),
                lambda: inside.symlink_to(root.parent),
                inside.unlink,
                inside.mkdir,
            ):
                with suppress(OSError):
                    change()
            if over.is_set():
                return

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(1000):
            with suppress(RefusedPathError, OSError):
                tree.write(str(inside / "secret"), "written")
            with suppress(RefusedPathError, OSError):
                assert tree.read(str(inside / "secret")) in {"written", ""}
    finally:
        over.set()
        swapping.join()
    assert (root.parent / "secret").read_text() == "not yours"


def test_what_is_no_file_or_no_text(root: Path, tree: WorkTree) -> None:
    """A pipe that nobody writes to holds nothing up; a folder, a picture and half a character are refused."""
    os.mkfifo(root / "pipe")
    (root / "picture").write_bytes(b"\x89PNG\xff")
    for path in ("pipe", "picture"):
        with pytest.raises(RefusedPathError):
            tree.read(str(root / path))
    with pytest.raises(OSError, match="No such device"):
        tree.write(str(root / "pipe"), "x")
    (root / "folder").mkdir()
    with pytest.raises((OSError, RefusedPathError)):
        tree.read(str(root / "folder"))
    (root / "kept").write_text("kept")
    with pytest.raises(RefusedPathError):
        tree.write(str(root / "kept"), "\ud800")
    assert (root / "kept").read_text() == "kept"


def test_a_file_that_is_too_large_is_refused(root: Path, tree: WorkTree) -> None:
    """Nobody's memory is filled by one."""
    with (root / "huge").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    with pytest.raises(RefusedPathError, match="larger"):
        tree.read(str(root / "huge"))
