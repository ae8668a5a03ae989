"""A task's local repository: what is found, refused and bundled; nothing of it is executed."""

import io
import os
import tempfile
from pathlib import Path
from typing import IO

import pytest

from sandherd.client.errors import HerdError, validated
from sandherd.client.repositories import git as git_program
from sandherd.client.repositories.local import LocalRepository, examine, write_bundle
from sandherd.client.repositories.source import RepositorySource, source_of
from sandherd.contracts.errors import Code
from tests.local_git import Git, clone, new_repository


@pytest.fixture
def local(tmp_path: Path) -> Git:
    """A repository with one commit on main."""
    git = new_repository(tmp_path / "My web app")
    git.commit()
    return git


async def examined(folder: Path, base: str | None = None) -> LocalRepository:
    return await examine(validated(RepositorySource, path=str(folder), base=base))


async def bundled(repository: LocalRepository, out: IO[bytes], limit: int | None = None) -> IO[bytes]:
    await write_bundle(repository, out, limit)
    return out


async def test_repository_is_found_from_a_folder_in_it(local: Git) -> None:
    """Its top level, its current branch, and a valid label from its folder's name."""
    commit = local.commit("src/code.py")
    found = await examined(local.folder / "src")
    assert (found.top, found.base, found.commit, found.uncommitted) == (local.folder, "main", commit, 0)
    assert found.label == "My-web-app"


async def test_bundle_has_the_base_branch_with_its_history_and_nothing_else(local: Git, tmp_path: Path) -> None:
    """Other branches, tags and uncommitted files are not uploaded."""
    local("tag", "v1")
    local("branch", "other")
    commit = local.commit("file", "two\n")
    (local.folder / "secret").write_text("not committed")
    with (tmp_path / "bundle").open("w+b") as file:
        await bundled(await examined(local.folder), file)
    assert local("bundle", "list-heads", str(tmp_path / "bundle")) == f"{commit} refs/heads/main"
    copy = new_repository(tmp_path / "copy", "--bare")
    copy("fetch", "--quiet", str(tmp_path / "bundle"), "refs/heads/main:refs/heads/main")
    assert copy("rev-list", "--count", "main") == "2"
    assert copy("ls-tree", "-r", "--name-only", "main") == "file"


async def test_uncommitted_changes_are_counted(local: Git) -> None:
    """A changed file and a new one, but not an ignored one."""
    local.commit(".gitignore", "ignored\n")
    for name in ("file", "new", "ignored"):
        (local.folder / name).write_text("changed\n")
    assert (await examined(local.folder)).uncommitted == 2


async def test_named_base_is_bundled(local: Git) -> None:
    """It is bundled also if another branch, or no branch, is checked out."""
    first = local("rev-parse", "HEAD")
    local("branch", "develop")
    local.commit("file", "two\n")
    local("checkout", "--quiet", "--detach")
    found = await examined(local.folder, "develop")
    assert (found.base, found.commit) == ("develop", first)


async def test_bare_repository_and_work_tree_are_accepted(local: Git, tmp_path: Path) -> None:
    """A bare repository has no changes; a further work tree has a branch of its own."""
    bare = clone(local.folder, tmp_path / "web.git", "--bare")
    found = await examined(bare.folder)
    assert (found.top, found.label, found.base, found.uncommitted) == (bare.folder, "web", "main", 0)
    local("worktree", "add", "--quiet", "-b", "beside", str(tmp_path / "beside"))
    found = await examined(tmp_path / "beside")
    assert (found.top, found.base) == (tmp_path / "beside", "beside")
    with tempfile.TemporaryFile() as file:
        assert (await bundled(found, file)).read(16) == b"# v2 git bundle\n"


async def refusal(folder: Path, base: str | None = None) -> HerdError:
    with pytest.raises(HerdError) as refused:
        await examined(folder, base)
    assert refused.value.problem.code is Code.INVALID_FIELD
    assert refused.value.problem.remedy
    return refused.value


async def test_detached_head_needs_a_base(local: Git) -> None:
    """The error names the fix."""
    local("checkout", "--quiet", "--detach")
    error = await refusal(local.folder)
    assert error.problem.field == "base"
    assert "detached" in error.line
    assert "--base" in error.line


async def test_shallow_clone_is_refused(local: Git, tmp_path: Path) -> None:
    """With the command that completes it: after that, it is accepted."""
    local.commit("file", "two\n")
    shallow = clone(local.folder, tmp_path / "shallow", "--depth=1")
    assert f"`git -C {shallow.folder} fetch --unshallow`" in (await refusal(shallow.folder)).line
    shallow("fetch", "--quiet", "--unshallow")
    assert (await examined(shallow.folder)).base == "main"


async def test_partial_clone_is_refused(local: Git, tmp_path: Path) -> None:
    """A bundle would have to get the missing objects from its remote."""
    local("config", "uploadpack.allowFilter", "true")
    partial = clone(local.folder, tmp_path / "partial", "--filter=blob:none", "--no-checkout")
    assert "partial clone" in (await refusal(partial.folder)).line


@pytest.mark.parametrize(
    ("base", "shown"),
    [("absent", "there is: main"), ("a..b", "not a valid name"), ("refs/heads/main", "there is: main")],
)
async def test_unknown_base_is_refused_with_those_that_exist(local: Git, base: str, shown: str) -> None:
    """A name that git would interpret as another reference is refused, too."""
    source = RepositorySource.model_construct(path=str(local.folder), base=base)
    with pytest.raises(HerdError) as refused:
        await examine(source)
    assert shown in refused.value.line


async def test_branch_whose_name_no_herd_accepts_is_refused(local: Git) -> None:
    """Before anything is uploaded."""
    local("checkout", "--quiet", "-b", "größe")
    assert (await refusal(local.folder)).problem.field == "base"


async def test_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    """A folder without one, a file, nothing, and a repository without a commit."""
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file", tmp_path / "absent"):
        assert (await refusal(folder)).problem.field == "path"
    new_repository(tmp_path / "new")
    assert "no commit" in (await refusal(tmp_path / "new")).line


async def test_bundle_over_the_limit_is_refused_before_it_is_complete(local: Git) -> None:
    """The limit is stated, and git writes no more than a block above it."""
    (local.folder / "large").write_bytes(os.urandom(200_000))
    local("add", "large")
    local("commit", "--quiet", "-m", "large")
    found = await examined(local.folder)
    with tempfile.TemporaryFile() as file:
        with pytest.raises(HerdError) as refused:
            await bundled(found, file, 50_000)
        assert file.seek(0, io.SEEK_END) <= 51_000
    assert refused.value.problem.code is Code.TOO_LARGE
    assert "50000 bytes" in refused.value.line
    with tempfile.TemporaryFile() as file:
        await bundled(found, file, 300_000)


async def test_nothing_of_the_repository_is_executed(local: Git, tmp_path: Path) -> None:
    """No hook, no file system monitor."""
    ran = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {ran}\n"
    (tmp_path / "program").write_text(script)
    (tmp_path / "program").chmod(0o755)
    hooks = local.folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / hook).write_text(script)
        (hooks / hook).chmod(0o755)
    local("config", "core.fsmonitor", str(tmp_path / "program"))
    local("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "status")
    (local.folder / "file").write_text("changed\n")
    with tempfile.TemporaryFile() as file:
        await bundled(await examined(local.folder), file)
    assert not ran.exists()


async def test_variables_of_another_repository_have_no_effect(
    local: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git hook that runs the client has such variables."""
    other = new_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.folder))
    assert (await examined(local.folder)).top == local.folder


async def test_git_that_takes_too_long_is_ended(local: Git, tmp_path: Path) -> None:
    """With what it has started."""
    alive = tmp_path / "pid"
    local("config", "alias.slow", f"!echo $$ >{alive}; sleep 600")
    with pytest.raises(HerdError) as late:
        await git_program.run_git(local.folder, "slow", seconds=0.5)
    assert late.value.problem.code is Code.UNAVAILABLE
    assert "took longer" in late.value.line
    if alive.exists():
        assert not Path(f"/proc/{alive.read_text().strip()}/cmdline").exists()


async def test_missing_git_is_an_error_with_a_remedy(
    local: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names what to install."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(HerdError) as missing:
        await git_program.run_git(local.folder, "status")
    assert missing.value.line == "git is not installed here; install git"


def test_texts_name_a_url_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL has a scheme; everything else is a path, also a `file` URL."""
    monkeypatch.chdir(tmp_path)
    assert source_of("https://git.example.org/demo/web").url == "https://git.example.org/demo/web"
    assert source_of("../web").path == "../web"
    assert source_of(tmp_path).path == str(tmp_path)
    assert source_of("file:///srv/my%20web").path == "/srv/my web"
    (tmp_path / "a:b").mkdir()
    assert source_of("a:b").path == "a:b"


@pytest.mark.parametrize(
    "text",
    [
        "https://ada:s3cretvalue@git.example.org/demo/web",
        "https://s3cretvalue@git.example.org/demo/web",
        "https://git.example.org/demo/web?token=s3cretvalue",
        "ssh://git@git.example.org/demo/web",
        "git@git.example.org:demo/web",
        "git://git.example.org/demo/web",
        "",
    ],
)
def test_other_urls_are_refused_without_what_they_contain(text: str) -> None:
    """A credential is refused and not repeated."""
    with pytest.raises(HerdError) as refused:
        source_of(text)
    assert "s3cretvalue" not in refused.value.line
    assert "s3cretvalue" not in str(refused.value.problem)
    assert refused.value.__cause__ is None


def test_local_repository_is_not_pushed_to() -> None:
    """It is not pushed to, even on request. A repository with a URL is, unless the user decides otherwise."""
    with pytest.raises(HerdError, match="sandherd branches fetch"):
        validated(RepositorySource, path=".", push=True)
    assert validated(RepositorySource, url="https://git.example.org/demo/web").of_url().push
    assert not validated(RepositorySource, url="https://git.example.org/demo/web", push=False).of_url().push
