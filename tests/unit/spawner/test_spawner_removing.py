"""A sandbox's directory can always be removed, whatever its agent has made of it."""

import os
from pathlib import Path

import pytest

from spawner.runtimes.layout import Layout
from spawner.runtimes.removing import remove_tree


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "sbx-1"
    folder.mkdir()
    return folder


def dig(folder: Path, levels: int) -> None:
    """Folders in each other, with a file and a link in each."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at))
        os.symlink("..", "up", dir_fd=at)
        os.mkdir("deeper", dir_fd=at)
        below = os.open("deeper", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_a_tree_of_any_depth_is_removed(place: Path) -> None:
    """Deeper than Python recurses, than files may be open, and than a path may be long."""
    dig(place, 3000)
    Layout(root=place.parent, aside=place.parent / "aside").remove("sbx-1")
    assert not list(place.parent.iterdir())


def test_links_are_removed_and_not_followed(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither to a file nor to a folder, however deep they lie."""
    other = tmp_path_factory.mktemp("other")
    (other / "file").write_text("kept")
    (place / "a/b").mkdir(parents=True)
    for folder in (place, place / "a", place / "a/b"):
        (folder / "file").symlink_to(other / "file")
        (folder / "folder").symlink_to(other)
    remove_tree(place)
    assert not place.exists()
    assert (other / "file").read_text() == "kept"


def test_rights_that_were_taken_away_are_taken_back(place: Path) -> None:
    """Names of any kind, pipes, and folders that nobody may read or write."""
    (place / "a/b/c").mkdir(parents=True)
    (place / "a/b/c/file").touch()
    os.mkfifo(place / "a/-rf\n")
    (place / "a/\udcff").mkdir()
    for folder in (place / "a/b/c", place / "a/b", place / "a", place):
        folder.chmod(0)
    remove_tree(place)
    assert not place.exists()


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Whoever asks decides what that means."""
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "sbx-none")
