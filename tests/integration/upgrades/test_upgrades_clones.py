"""The last release's code from a clone: a full clone has it, a shallow one fetches that single commit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.releases.archived import NoHistoryError, archived, is_behind, is_shallow
from tests.releases.release_record import RECORDED, last_release, release_of, written

AUTHOR = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def git(folder: Path, *words: str) -> str:
    """Run git, which must succeed; returns its output."""
    done = subprocess.run(["git", *AUTHOR, "-C", str(folder), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository in which a file was changed after its release."""
    place = tmp_path / "origin"
    place.mkdir()
    git(place, "init", "-q")
    for text in ("released", "since"):
        (place / "libs.txt").write_text(text)
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", text)
    return place


def cloned(origin: Path, *how: str) -> Path:
    """A clone of it, by a transport that shares no file."""
    place = origin.with_name(f"clone{len(how)}")
    git(origin, "clone", "-q", *how, f"file://{origin}", str(place))
    return place


@pytest.mark.parametrize("how", [(), ("--depth", "1")], ids=["whole", "shallow"])
def test_clone_has_the_release_or_fetches_it(origin: Path, how: tuple[str, ...]) -> None:
    """Both yield the released file; the shallow clone has fetched only that commit."""
    released = git(origin, "rev-parse", "HEAD^")
    clone = cloned(origin, *how)
    assert is_shallow(clone) == bool(how)
    assert dict(archived(released, "libs.txt", root=clone)) == {"libs.txt": b"released"}
    assert is_shallow(clone) == bool(how)


def test_shallow_clone_without_its_origin_names_the_remedy(origin: Path) -> None:
    """The origin can't be reached: the error states what to do once it can."""
    released = git(origin, "rev-parse", "HEAD^")
    clone = cloned(origin, "--depth", "1")
    shutil.rmtree(origin)
    with pytest.raises(NoHistoryError, match="git fetch --unshallow"):
        list(archived(released, "libs.txt", root=clone))


def test_last_release_is_an_ancestor() -> None:
    """Every full clone has the release; a shallow one can't show that."""
    assert is_shallow() or is_behind(last_release().commit)


def test_frozen_release_equals_its_commit() -> None:
    """Examples, migrations and version are what `make freeze` writes, without manual changes."""
    assert written(release_of(last_release().commit)) == RECORDED.read_text()
