"""Paths of the work tree: whatever is asked for, nothing outside of it is reached."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandherd.contracts.errors import Code, ContractError
from sandherd_worker.access.beneath import Beneath, opened

PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "link", "up", "out", "abs", "loop", "file", "ü"])
TARGETS = st.sampled_from(["a", "..", "../..", "a/b/../..", "../../x", "/", "/etc", "link", "loop", "."])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "outside" / "root"
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/file").write_text("inside")
    (tmp_path / "x").write_text("outside")
    return root


def real(root: Path, path: str, *, make: bool = False, follow: bool = True) -> Path:
    """Where a path leads, as it is walked."""
    with Beneath(root).place(path, make=make, follow=follow) as (folder, name):
        return Path(f"/proc/self/fd/{folder}").readlink() / ("" if name == "." else name)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(PARTS, max_size=8), link=TARGETS, up=TARGETS, make=st.booleans(), follow=st.booleans())
def test_no_path_reaches_anything_outside(
    tree: Path, parts: list[str], link: str, up: str, make: bool, follow: bool
) -> None:
    """Whatever links there are and however they point, a place is inside, or is refused."""
    for name, target in {"link": link, "a/up": up, "out": "../..", "abs": "/", "loop": "loop"}.items():
        place = tree / name
        place.unlink(missing_ok=True)
        place.symlink_to(target)
    before = sorted(path.relative_to(tree.parent.parent) for path in tree.parent.glob("*"))
    with suppress(ContractError):
        found = real(tree, "/".join(parts), make=make, follow=follow)
        assert found == tree or found.is_relative_to(tree), (parts, found)
        assert ".." not in found.parts
    assert sorted(path.relative_to(tree.parent.parent) for path in tree.parent.glob("*")) == before


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        (".", ""),
        ("a/../a/./b//c", "a/b/c"),
        ("a/b/../..", ""),
        ("in/file", "a/file"),
        ("in/../in/b", "a/b"),
        ("new", "new"),
    ],
)
def test_a_path_leads_where_it_says(tree: Path, path: str, leads: str) -> None:
    """Also over a link inside, and back from it to where it points from there."""
    (tree / "in").symlink_to("a/b/../../a")
    assert real(tree, path) == tree / leads


@pytest.mark.parametrize("path", ["..", "/", "/etc/passwd", "a/../..", "out", "out/x", "abs/etc", "loop", "loop/x"])
def test_a_path_that_leads_out_is_refused_clearly(tree: Path, path: str) -> None:
    """With its field, and what to do."""
    for name, target in {"out": "../..", "abs": "/", "loop": "loop"}.items():
        (tree / name).symlink_to(target)
    with pytest.raises(ContractError) as refusal:
        real(tree, path)
    problem = refusal.value.problem
    assert (problem.code, problem.field, bool(problem.remedy)) == (Code.REFUSED, "path", True)


@pytest.mark.parametrize("path", ["new/../../x", "new/more/../x", "a/new/../../.."])
def test_a_refused_path_leaves_no_folder_behind(tree: Path, path: str) -> None:
    """There is no way back out of a folder that is not there, and none is made for it."""
    before = sorted(tree.rglob("*"))
    with pytest.raises(ContractError):
        real(tree, path, make=True)
    assert sorted(tree.rglob("*")) == before


def test_a_folder_that_is_moved_meanwhile_does_not_lead_elsewhere(tree: Path, tmp_path: Path) -> None:
    """`..` goes back to the folder that was come from, wherever the one after it may be by now."""
    with Beneath(tree).place("a/b/c") as (folder, name):
        (tree / "a/b").rename(tmp_path / "moved")
        (tree / "a/b").symlink_to("/etc")
        with opened(folder, name, "a/b/c") as found:
            assert Path(f"/proc/self/fd/{found}").readlink() == tmp_path / "moved/c"


def test_a_link_that_takes_a_folders_place_is_not_followed(tree: Path) -> None:
    """Between the look and the opening: the opening refuses."""
    with Beneath(tree).place("a/b") as (folder, name):
        (tree / "a/b").rename(tree / "a/old")
        (tree / "a/b").symlink_to("/etc")
        with pytest.raises(ContractError), opened(folder, name, "a/b"):
            pass


def test_nothing_stays_open(tree: Path) -> None:
    """However a walk ends."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tree / "out").symlink_to("..")
    for path in ("a/b/c", "out/x", "a/file/x", "missing/x", "a/b/../../.."):
        with suppress(ContractError):
            real(tree, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
