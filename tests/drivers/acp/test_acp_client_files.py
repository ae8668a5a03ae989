"""File access that an ACP agent requests of its client is confined to the work tree."""

import os
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from sandherd_drivers.acp.client_files import ClientFiles, RefusedPathError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (root := tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("not yours")
    return root


@pytest.fixture
def tree(root: Path) -> ClientFiles:
    return ClientFiles(root)


def test_file_is_written_and_read(root: Path, tree: ClientFiles) -> None:
    """A file is written with missing folders, overwritten, and read."""
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
def test_range_of_lines_is_read(root: Path, tree: ClientFiles, line: int | None, limit: int | None, text: str) -> None:
    """Lines count from 1; only a line feed ends one."""
    (root / "a").write_text("a\nb\x0c\nc\n")
    assert tree.read(str(root / "a"), line, limit) == text


@pytest.mark.parametrize("path", ["../secret", "x/../../secret", "/etc/passwd", "secret", ".", "", "\0"])
def test_path_outside_the_work_tree_is_refused(root: Path, tree: ClientFiles, path: str) -> None:
    """A path with `..`, an absolute path outside, a relative and an empty path are neither read nor written."""
    requested = path if path in {"secret", "", "\0"} else os.path.join(root, path)  # noqa: PTH118  # as an agent would
    with pytest.raises(RefusedPathError):
        tree.read(requested)
    with pytest.raises(RefusedPathError):
        tree.write(requested, "mine now")
    assert (root.parent / "secret").read_text() == "not yours"


def test_link_to_the_outside_is_refused(root: Path, tree: ClientFiles) -> None:
    """A link to a file or folder outside, existing or not, counts as its target."""
    (root / "file").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    (root / "nothing").symlink_to(root.parent / "not-yet")
    for path in ("file", "folder/secret", "nothing", "folder/new/deep"):
        with pytest.raises(RefusedPathError):
            tree.write(str(root / path), "mine now")
        with pytest.raises(RefusedPathError):
            tree.read(str(root / path))
    assert {path.name for path in root.parent.iterdir()} == {"work", "secret"}


def test_link_within_the_work_tree_is_followed(root: Path, tree: ClientFiles) -> None:
    """The work tree may be named by a link itself."""
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    (linked := root.parent / "also-work").symlink_to(root)
    tree.write(str(linked / "link" / "a"), "a")
    assert (root / "real" / "a").read_text() == "a"


def test_link_swapped_in_during_access_is_not_followed(root: Path, tree: ClientFiles) -> None:
    """However often a folder is swapped for a link that leads out, nothing outside is read or written."""
    inside, over = root / "swapped", threading.Event()

    def swap() -> None:
        for number in count():
            for change in (
                lambda outside=root / f"away-{number}": inside.rename(outside),
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


def test_pipes_folders_and_binary_files_are_refused(root: Path, tree: ClientFiles) -> None:
    """Opening a pipe does not block; a folder, a picture and a broken UTF-8 sequence are refused."""
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


def test_oversized_file_is_refused(root: Path, tree: ClientFiles) -> None:
    """A file over the limit is not read into memory."""
    with (root / "huge").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    with pytest.raises(RefusedPathError, match="larger"):
        tree.read(str(root / "huge"))
