"""A sandbox's directory can always be removed, whatever its agent has made of it."""

import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spawner.runtimes import directory_removal
from spawner.runtimes.directory_removal import grant_owner_permissions, remove_entry, remove_tree
from spawner.runtimes.layout import Layout


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


def test_tree_of_any_depth_is_removed(place: Path) -> None:
    """The tree is deeper than Python recurses, than files may be open, and than a path may be long."""
    dig(place, 3000)
    Layout(root=place.parent, quarantine_root=place.parent / "aside").remove("sbx-1")
    assert not list(place.parent.iterdir())


def test_links_are_removed_and_not_followed(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Links to files and folders are removed at any depth; their targets stay."""
    other = tmp_path_factory.mktemp("other")
    (other / "file").write_text("kept")
    (place / "a/b").mkdir(parents=True)
    for folder in (place, place / "a", place / "a/b"):
        (folder / "file").symlink_to(other / "file")
        (folder / "folder").symlink_to(other)
    remove_tree(place)
    assert not place.exists()
    assert (other / "file").read_text() == "kept"


def test_removed_permissions_do_not_prevent_removal(place: Path) -> None:
    """Names of any kind, pipes, and folders without read or write permission are removed."""
    (place / "a/b/c").mkdir(parents=True)
    (place / "a/b/c/file").touch()
    os.mkfifo(place / "a/-rf\n")
    (place / "a/\udcff").mkdir()
    for folder in (place / "a/b/c", place / "a/b", place / "a", place):
        folder.chmod(0)
    remove_tree(place)
    assert not place.exists()


def test_two_removals_at_once_both_succeed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a cancelled removal continues while the next removal begins."""
    (place / "a/b").mkdir(parents=True)
    for folder in (place, place / "a", place / "a/b"):
        (folder / "file").touch()
    looks = directory_removal._is_folder
    others = [lambda: shutil.rmtree(place / "a"), lambda: shutil.rmtree(place)]

    def look(folder: int, name: str) -> bool:
        found = looks(folder, name)
        if others:
            others.pop(0)()
        return found

    monkeypatch.setattr(directory_removal, "_is_folder", look)
    remove_tree(place)
    Layout(root=place.parent, quarantine_root=place.parent / "aside").remove("sbx-1")
    assert not place.exists()


def test_removal_of_a_missing_tree_raises(tmp_path: Path) -> None:
    """The caller decides what a missing tree means."""
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "sbx-none")


_EXCHANGER = """
import ctypes, os, sys
folder, victim = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(folder)
os.symlink(victim, "link")
print(flush=True)
while True:
    try:
        os.mkdir("entry", 0o755)
    except FileExistsError:
        pass
    for _ in range(200):
        libc.renameat2(-100, b"entry", -100, b"link", 2)
    if not os.path.islink("link") and not os.path.islink("entry"):
        try:
            os.symlink(victim, "link")
        except FileExistsError:
            os.rmdir("link")
"""
"""A process in a sandbox: it exchanges a folder with a link that leads out of it, as fast as it can."""


def test_folder_swapped_for_a_link_changes_nothing_outside(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Mode and content of the link's target do not change, whenever the swap happens."""
    victim = tmp_path_factory.mktemp("victim")
    victim.chmod(0o755)
    (victim / "file").touch()
    command = [sys.executable, "-c", _EXCHANGER, str(place), str(victim)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as exchanger:
        assert exchanger.stdout
        exchanger.stdout.readline()
        for _ in range(5000):
            with suppress(OSError):
                remove_entry(place / "entry")
            with suppress(OSError):
                grant_owner_permissions(place / "entry")
        exchanger.kill()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert (victim / "file").exists()
