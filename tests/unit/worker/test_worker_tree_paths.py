"""Paths of the work tree: no request reaches anything outside of it."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandherd.contracts.errors import Code, ContractError
from sandherd_worker.access.safe_paths import WorkTreePaths, opened

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
    with WorkTreePaths(root).open_parent(path, make=make, follow=follow) as (folder, name):
        return Path(f"/proc/self/fd/{folder}").readlink() / ("" if name == "." else name)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(PARTS, max_size=8), link=TARGETS, up=TARGETS, make=st.booleans(), follow=st.booleans())
def test_path_reaches_nothing_outside(
    tree: Path, parts: list[str], link: str, up: str, make: bool, follow: bool
) -> None:
    """Whatever links there are and however they point, a path is inside, or is refused."""
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
def test_path_resolves_through_links(tree: Path, path: str, leads: str) -> None:
    """A path resolves over a link inside the tree, and from there onwards."""
    (tree / "in").symlink_to("a/b/../../a")
    assert real(tree, path) == tree / leads


@pytest.mark.parametrize("path", ["..", "/", "/etc/passwd", "a/../..", "out", "out/x", "abs/etc", "loop", "loop/x"])
def test_path_outside_the_work_tree_is_refused(tree: Path, path: str) -> None:
    """The error has the field and the remedy."""
    for name, target in {"out": "../..", "abs": "/", "loop": "loop"}.items():
        (tree / name).symlink_to(target)
    with pytest.raises(ContractError) as refusal:
        real(tree, path)
    problem = refusal.value.problem
    assert (problem.code, problem.field, bool(problem.remedy)) == (Code.REFUSED, "path", True)


@pytest.mark.parametrize("path", ["new/../../x", "new/more/../x", "a/new/../../.."])
def test_refused_path_leaves_no_folder_behind(tree: Path, path: str) -> None:
    """There is no path back out of a missing folder, and none is created for it."""
    before = sorted(tree.rglob("*"))
    with pytest.raises(ContractError):
        real(tree, path, make=True)
    assert sorted(tree.rglob("*")) == before


def test_moved_folder_leads_nowhere_else(tree: Path, tmp_path: Path) -> None:
    """`..` returns to the folder that the walk came from, wherever the one after it may be by now."""
    with WorkTreePaths(tree).open_parent("a/b/c") as (folder, name):
        (tree / "a/b").rename(tmp_path / "moved")
        (tree / "a/b").symlink_to("/etc")
        with opened(folder, name, "a/b/c") as found:
            assert Path(f"/proc/self/fd/{found}").readlink() == tmp_path / "moved/c"


def test_link_swapped_in_for_a_folder_is_not_followed(tree: Path) -> None:
    """The swap happens between the check and the opening: the opening refuses."""
    with WorkTreePaths(tree).open_parent("a/b") as (folder, name):
        (tree / "a/b").rename(tree / "a/old")
        (tree / "a/b").symlink_to("/etc")
        with pytest.raises(ContractError), opened(folder, name, "a/b"):
            pass


def test_every_walk_closes_its_descriptors(tree: Path) -> None:
    """All descriptors are closed after a successful and after a failed walk."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tree / "out").symlink_to("..")
    for path in ("a/b/c", "out/x", "a/file/x", "missing/x", "a/b/../../.."):
        with suppress(ContractError):
            real(tree, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
