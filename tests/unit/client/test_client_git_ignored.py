"""`run --dir` leaves out of a folder in a repository exactly the files that git itself reports as ignored."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandherd.archives.ignore import IgnoreRules
from sandherd.client.errors import HerdError
from sandherd.client.task_work import pack_work
from sandherd.client.work_source import WorkSource

FILES = ("main.py", ".env", "trace.log", "kept.log", "excluded.txt", "own.swp", "sub/.env", "sub/a.swp", "top")
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder of git."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return written(tmp_path / "config" / "git" / "ignore", "*.swp\n").parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose root, a folder on the way and the exclude file have rules for `services/api`."""
    root = tmp_path / "repository"
    root.mkdir()
    git("init", "-q", at=root)
    written(root / ".gitignore", ".env\n*.log\n/top\n/services/api/top\n")
    written(root / "services" / ".gitignore", "!kept.log\n")
    written(root / ".git" / "info" / "exclude", "excluded.txt\n")
    fill(root / "services" / "api")
    return root


def written(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def fill(folder: Path) -> Path:
    for name in FILES:
        written(folder / name)
    return folder


def git(*arguments: str, at: Path) -> bytes:
    return subprocess.run(["git", *IDENTITY, *arguments], cwd=at, check=True, capture_output=True).stdout


def unignored(folder: Path) -> set[str]:
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", at=folder)
    return {name.decode() for name in listed.split(b"\0") if name}


def packed(folder: Path) -> set[str]:
    out = io.BytesIO()
    pack_work(WorkSource(folder), out, None)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {entry.name for entry in tar if entry.isreg()}


def test_rules_above_the_folder_apply(repository: Path, tmp_path: Path) -> None:
    """Rules of the root, of a folder on the way, of `info/exclude` and of the user; also where a link leads there."""
    folder = repository / "services" / "api"
    assert packed(folder) == unignored(folder) == {"main.py", "kept.log"}
    (tmp_path / "link").symlink_to(folder)
    assert packed(tmp_path / "link") == {"main.py", "kept.log"}


def test_user_excludes_file_is_the_configured_one(repository: Path, config: Path, tmp_path: Path) -> None:
    """It replaces the default, may be a link, and may be empty."""
    folder = repository / "services" / "api"
    stored = written(tmp_path / "dotfiles", "main.py\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").symlink_to(stored)
    for value, expected in (("~/mine", {"kept.log", "own.swp", "sub/a.swp"}), ("", None)):
        written(config / "config", f'[core]\n\texcludesFile = "{value}"\n')
        assert packed(folder) == unignored(folder)
        assert expected is None or packed(folder) == expected
    written(config / "config", "[core\n")
    with pytest.raises(HerdError, match="git can't read its configuration"):
        packed(folder)


def test_default_excludes_file_applies_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file is read from its default place if git is not installed."""
    monkeypatch.setenv("PATH", os.devnull)
    assert packed(repository / "services" / "api") == {"main.py", "kept.log"}


def test_exclude_file_of_worktrees_and_submodules_applies(repository: Path, tmp_path: Path) -> None:
    """Their git directory is elsewhere: a worktree has the exclude file of its repository, a submodule its own."""
    git("add", ".gitignore", "services", at=repository)
    git("commit", "-qm", "first", at=repository)
    git("worktree", "add", "-q", str(tmp_path / "tree"), at=repository)
    git("submodule", "add", "-q", str(repository), "part", at=repository)
    written(repository / ".git" / "modules" / "part" / "info" / "exclude", "main.py\n")
    for folder, expected in (
        (tmp_path / "tree" / "services" / "api", {"main.py", "kept.log"}),
        (repository / "part" / "services", {".gitignore", "api/kept.log", "api/excluded.txt"}),
    ):
        assert packed(fill(folder) if folder.name == "api" else fill(folder / "api").parent) == expected


def test_rules_above_a_nested_repository_do_not_apply(repository: Path) -> None:
    """Git does not apply them either. A folder outside a repository has only its own rules and the user's."""
    folder = repository / "services" / "api"
    git("init", "-q", at=folder)
    assert packed(folder) == unignored(folder) == {name for name in FILES if not name.endswith(".swp")}


def test_folder_without_repository_has_its_own_rules(tmp_path: Path) -> None:
    """No rule of a folder above applies; the user's do."""
    written(tmp_path / ".gitignore", "main.py\n")
    folder = fill(tmp_path / "alone")
    written(folder / ".gitignore", ".env\n")
    assert packed(folder) == {".gitignore", "main.py", "trace.log", "kept.log", "excluded.txt", "top"}


def test_worker_reads_no_rules_outside_its_tree(repository: Path, tmp_path: Path) -> None:
    """The `.git` file of a hostile tree can't make the worker read an exclude file elsewhere."""
    tree = written(tmp_path / "work" / "main.py").parent
    written(tree / ".git", f"gitdir: {repository}/.git\n")
    for confined, ignored in ((True, False), (False, True)):
        rules = IgnoreRules(confined=confined)
        rules.read(tree, "", names(tree))
        assert rules("excluded.txt", directory=False) is ignored


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
