"""What is passed over is what git ignores: asked of git itself, and case by case."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandherd.archives.ignore import IgnoreRules
from sandherd_worker.work_tree import WorkTree

ATOMS = [
    "a",
    "b",
    "foo",
    "*",
    "**",
    "***",
    "?",
    "/",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]",
    "\\a",
    "\\",
    "\\/",
    "[[:alpha:]]",
]
ATOMS += [
    "[]-]",
    "x",
    " ",
    "\\ ",
    "é",
    "[",
    "]",
    "-",
    "!",
    "#",
    "\t",
    "\r",
    "[[:nothing:]]",
    "[/]",
    "{a,b}",
    "\\[",
    ".",
]
PATTERN = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(st.sampled_from(ATOMS + ["/"] * 6), min_size=1, max_size=5).map("".join),
    st.sampled_from(["", "", "/"]),
)
LIST = st.lists(PATTERN, max_size=4).map("\n".join)
NAMES = ["a", "b", "x", "ab", "é", "c", "a b", "foox", ".a", "b]"]


def git(*arguments: str, at: Path) -> bytes:
    """What git says, whatever the configuration of the user."""
    clean = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=at, check=True, capture_output=True, env=clean).stdout


def watched(work: Path, store: Path) -> set[str]:
    tree = WorkTree(work, store)
    found = {one.path for one in tree.changes()}
    tree.close()
    return found


def ruled(root: Path, gitignore: str) -> IgnoreRules:
    (root / ".gitignore").write_text(gitignore)
    ignored = IgnoreRules()
    ignored.read(root, "", [path.name for path in root.iterdir()])
    return ignored


@pytest.fixture(scope="module")
def repository(tmp_path_factory: Any) -> Path:
    """Two levels of directories, with files of all names in each."""
    root: Path = tmp_path_factory.mktemp("repository")
    git("init", "-q", at=root)
    for folder in ("", "a", "b", "foo", "a/b", "a/foo", "b/a", "foo/x", "foo/ab"):
        (root / folder).mkdir(exist_ok=True)
    for folder in ("", "a", "b", "foo", "a/b", "a/foo", "b/a", "foo/x", "foo/ab"):
        for name in NAMES:
            if not (root / folder / name).exists():
                (root / folder / name).touch()
    return root


@settings(max_examples=120, deadline=None)
@given(top=LIST, inner=LIST, innermost=LIST, exclude=LIST)
def test_watched_files_are_those_that_git_would_add(
    repository: Path, top: str, inner: str, innermost: str, exclude: str
) -> None:
    """Negations, directories, globs, lists in subfolders, and the repository's own list apply in git's order."""
    for path, text in {
        ".gitignore": top, "a/.gitignore": inner, "a/b/.gitignore": innermost, ".git/info/exclude": exclude
    }.items():  # fmt: skip
        (repository / path).write_text(text, newline="")
    listed = git("ls-files", "-z", "--others", "--exclude-standard", at=repository)
    expected = {os.fsdecode(path) for path in listed.split(b"\0") if path}
    assert watched(repository, repository.parent / "store") == expected


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
def test_ignore_rules_equal_those_of_git(tmp_path: Path, path: str, directory: bool, ignored: bool) -> None:
    """The patterns mean what they mean to git."""
    assert ruled(tmp_path, RULES)(path, directory=directory) is ignored


@pytest.mark.parametrize("rule", ["[", "[]", "[z-a]", "\\", "!", "/", "**", "***", "(", "+?", "{a,b}"])
def test_senseless_rule_does_no_harm(tmp_path: Path, rule: str) -> None:
    """Any content of `.gitignore` is accepted, because an agent may write anything into it."""
    ruled(tmp_path, rule)("a/b", directory=False)


@pytest.mark.parametrize("stars", ["*a" * 60, "**/" * 60 + "b", "/x" + "*?" * 60 + "y", "**/a" * 30 + "/**/b"])
def test_no_pattern_takes_exponential_time(tmp_path: Path, stars: str) -> None:
    """A pattern that could match in very many ways is matched in linear time."""
    assert not ruled(tmp_path, f"{stars}c")("/".join(["a" * 120] * 30) + "x", directory=False)


def test_nested_repository_has_its_own_rules(tmp_path: Path) -> None:
    """Rules of the outer one end there, and a new rule applies at the next scan."""
    work = tmp_path / "work"
    (work / "inner/d").mkdir(parents=True)
    for place in (work, work / "inner"):
        git("init", "-q", at=place)
    (work / ".gitignore").write_text("*.log\n")
    (work / "inner/.git/info/exclude").write_text("*.tmp\n")
    for name in ("a.log", "a.tmp", "inner/a.log", "inner/a.tmp", "inner/d/a.tmp"):
        (work / name).touch()
    tree = WorkTree(work, tmp_path / "store")
    assert {one.path for one in tree.changes()} == {".gitignore", "a.tmp", "inner/a.log"}
    (work / "inner/.git/info/exclude").write_text("*.log\n")
    assert {(one.path, one.kind) for one in tree.changes()} == {
        ("inner/a.tmp", "created"),
        ("inner/d/a.tmp", "created"),
    }
    (work / "inner/a.log").unlink()
    assert list(tree.changes()) == []


def test_git_directory_is_not_watched(tmp_path: Path) -> None:
    """The directory may have another name; its ignore list is found there."""
    work = tmp_path / "work"
    work.mkdir()
    git("init", "-q", "--separate-git-dir=meta", at=work)
    (work / "meta/info/exclude").write_text("*.tmp\n")
    for name in ("a.tmp", "b"):
        (work / name).touch()
    assert watched(work, tmp_path / "store") == {"b"}


def test_no_list_is_read_from_outside_the_tree(tmp_path: Path) -> None:
    """Neither a link nor a `.git` that leads outside is followed."""
    work, outside = tmp_path / "work", tmp_path / "away"
    (outside / "info").mkdir(parents=True)
    (outside / "info/exclude").write_text("secret\n")
    for number, made in enumerate(("link", "file", "exclude", "gitignore")):
        place = work / str(number)
        (place / ".git/info" if made == "exclude" else place).mkdir(parents=True)
        (place / "secret").touch()
        if made == "link":
            (place / ".git").symlink_to(outside)
        elif made == "file":
            (place / ".git").write_text(f"gitdir: {outside}\n")
        elif made == "exclude":
            (place / ".git/info/exclude").symlink_to(outside / "info/exclude")
        else:
            (place / ".gitignore").symlink_to(outside / "info/exclude")
    assert {path for path in watched(work, tmp_path / "store") if path.endswith("secret")} == {
        f"{number}/secret" for number in range(4)
    }
