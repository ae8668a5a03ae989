"""The repository of a task on the command line and in files: errors name what the user wrote."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandherd.cli.exit_status import run_command
from sandherd.cli.parse.repository import (
    SubmodulesChoice,
    co_author,
    project_repository,
    refuse_other_trees,
    repository_source,
)
from sandherd.cli.scheduled_task import scheduled_task
from sandherd.client.errors import HerdError
from sandherd.client.repositories.source import RepositorySource
from sandherd.client.tasks import batch
from sandherd.client.tasks.resume import ResumeSource
from sandherd.contracts.errors import Code
from sandherd.contracts.repositories import CoAuthor, ProjectRepository, Repository
from tests.local_git import new_repository

URL = "https://git.example.org/demo/web"
NONE: dict[str, Any] = {"base": None, "ticket": None, "branch": None}
NONE |= {"join": False, "no_push": False, "no_commit_rest": False}


def source(repo: str | None = URL, **options: Any) -> RepositorySource | None:
    return repository_source(repo, **(NONE | options))


def test_options_become_a_repository() -> None:
    """All of them; without one, a new branch that is pushed and has what the agent leaves."""
    assert source(None) is None
    recursive = SubmodulesChoice.RECURSIVE
    found = source(
        base="main",
        ticket="#7",
        join=True,
        no_push=True,
        no_commit_rest=True,
        submodules=recursive,
        lfs=True,
        git_proxy=True,
    )
    expected: dict[str, Any] = {"base": "main", "ticket": "#7", "join": True, "push": False, "commit_rest": False}
    expected |= {"url": URL, "submodules": "recursive", "lfs": True, "git_proxy": True}
    assert found == RepositorySource(**expected)
    assert found.of_url() == Repository(**expected)
    plain = source()
    assert plain is not None
    assert plain.of_url() == Repository(url=URL)


def test_options_without_a_repository_are_about_the_default_one() -> None:
    """Options that are not set have the values of the project's default repository. Without one, there is none."""
    found = source(None, ticket="#7", join=True)
    assert found is not None
    default = ProjectRepository(url=URL, base="next", push=False, commit_rest=False)
    assert found.of_default(default, "web") == Repository(
        url=URL, base="next", ticket="#7", join=True, push=False, commit_rest=False
    )
    other = source(None, base="main", no_push=True)
    assert other is not None
    assert other.of_default(ProjectRepository(url=URL), "web") == Repository(url=URL, base="main", push=False)
    for choice, by_default, expected in ((None, True, True), (False, True, False), (True, False, True)):
        other = source(None, ticket="#7", git_proxy=choice)
        assert other is not None
        assert other.of_default(ProjectRepository(url=URL, git_proxy=by_default), "web").git_proxy is expected
    refusing = source(None, git_proxy=False)
    assert refusing is not None, "it is about the default repository"
    with pytest.raises(HerdError, match="project web has no default one"):
        other.of_default(None, "web")
    with pytest.raises(HerdError, match="--ticket and others without --repo"):
        scheduled_task(["Do it", "--ticket", "#7", "--", "true"])


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"repo": "ssh://git.example.org/x"}, "--repo: "),
        ({"repo": f"{URL}?x=1"}, "--repo: "),
        ({"repo": ""}, "--repo: "),
        ({"base": "a..b"}, "--base: "),
        ({"branch": "-f"}, "--branch: "),
        ({"ticket": "a b"}, "--ticket: "),
        ({"join": True}, "--join "),
        ({"join": True, "ticket": "7", "branch": "x"}, "--join "),
        ({"repo": None, "base": "a..b"}, "--base: "),
        ({"repo": ".", "lfs": True}, "--lfs "),
        ({"repo": ".", "git_proxy": True}, "--git-proxy "),
    ],
    ids=str,
)
def test_errors_name_the_option(options: dict[str, Any], option: str) -> None:
    """The line begins with the option as the user typed it."""
    with pytest.raises(HerdError) as refused:
        source(**options)
    assert refused.value.problem.code is Code.INVALID_FIELD
    assert refused.value.line.startswith(option)


def test_other_files_to_begin_with_are_refused() -> None:
    """A folder, an earlier task's session, and files that are too large for a spec."""
    for more in (
        {"directory": Path(), "resume": None, "uploads": True},
        {"directory": None, "resume": ResumeSource(task="task-one"), "uploads": False},
        {"directory": None, "resume": None, "uploads": True},
    ):
        refuse_other_trees(None, **more)
        with pytest.raises(HerdError):
            refuse_other_trees(source(), **more)
    refuse_other_trees(source(), None, None, uploads=False)


def test_default_repository_of_a_project_is_named_by_its_url() -> None:
    """With the options that all its tasks have; `run` opts out of it, which excludes a repository."""
    options: dict[str, Any] = {"base": "next", "no_push": True, "no_commit_rest": True}
    assert project_repository(None, base=None, no_push=False, no_commit_rest=False) is None
    found = project_repository(URL, **options, submodules=SubmodulesChoice.TRUE, lfs=True, git_proxy=True)
    expected: dict[str, Any] = {"url": URL, "base": "next", "push": False, "commit_rest": False}
    expected |= {"submodules": True, "lfs": True, "git_proxy": True}
    assert found == ProjectRepository(**expected)
    assert found.of_task() == Repository(**expected)
    for repo, remedy in ((".", "https://HOST/OWNER/NAME"), (None, "--repo")):
        with pytest.raises(HerdError) as refused:
            project_repository(repo, **options)
        assert remedy in str(refused.value.problem.remedy)
    with pytest.raises(HerdError, match="--no-repo"):
        refuse_other_trees(source(), None, None, uploads=False, no_repo=True)


def test_co_author_is_the_user_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of the git configuration. Without one there, no name is guessed."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    shop = new_repository(tmp_path / "shop")
    with pytest.raises(HerdError, match=r"git has no user\.name"):
        co_author(True, str(shop.folder))
    shop("config", "user.name", "Ann Example")
    with pytest.raises(HerdError, match=r"git has no user\.email"):
        co_author(True, str(shop.folder))
    shop("config", "user.email", "ann@example.org")
    (shop.folder / "sub").mkdir()
    assert co_author(True, str(shop.folder / "sub")) == CoAuthor(name="Ann Example", email="ann@example.org")
    assert co_author(False, str(shop.folder)) is None
    shop("config", "user.name", "Ann <x>")
    with pytest.raises(HerdError, match="--co-author"):
        co_author(True, str(shop.folder))


@pytest.mark.parametrize("command", ["show", "fetch", "push", "delete", "diff"])
def test_hostile_name_of_a_branch_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a connection is made: what git does not accept, and what no name of a branch has here."""
    names = [
        "",
        "*",
        ">",
        "../x",
        "a\n",
        "a\0",
        "a b",
        "a..b",
        "x.lock",
        "HEAD",
        "é",
        "a\u202eb",
        "a~1",
        "a:b",
        "@{-1}",
    ]
    for name in [*names, "a:b", "@{-1}", "x" * 201, "a//b", "/a", "a/", ".a"]:
        assert run_command(["branches", command, "--", name]) == 2, name
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert "broker" not in shown.err


def test_credential_in_a_url_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before a connection is made."""
    assert run_command(["run", "x", "--repo", "https://ada:s3cretvalue@git.example.org/x", "--", "true"]) == 2
    shown = capsys.readouterr()
    assert "credential" in shown.err
    assert "s3cretvalue" not in shown.err + shown.out


def task_file(folder: Path, repository: Any, **more: Any) -> Path:
    file = folder / "tasks.yaml"
    task = {"name": "one", "text": "do it", "argv": ["true"], "repository": repository, **more}
    file.write_text(yaml.safe_dump({"tasks": [task]}))
    return file


def test_repository_in_a_file_of_tasks(tmp_path: Path) -> None:
    """A URL becomes a part of the spec; a path is relative to the file's folder, and uploaded later."""
    [remote] = batch.read(task_file(tmp_path, {"url": URL, "base": "main", "commit_rest": False}))
    assert (remote.spec.repository, remote.repository) == (Repository(url=URL, base="main", commit_rest=False), None)
    [remote] = batch.read(task_file(tmp_path, URL))
    assert remote.spec.repository == Repository(url=URL)
    for written in ("../web", {"path": "../web"}):
        [local] = batch.read(task_file(tmp_path, written))
        assert local.spec.repository is None
        assert local.repository == RepositorySource(path=str(tmp_path / "../web"))
    [local] = batch.read(task_file(tmp_path, {"path": "/srv/web"}))
    assert local.repository == RepositorySource(path="/srv/web")


def test_matrix_has_a_repository_for_each_combination(tmp_path: Path) -> None:
    """Its values are filled in."""
    written = {"url": URL, "base": "${{ matrix.base }}"}
    found = batch.read(task_file(tmp_path, written, matrix={"base": ["main", "develop"]}))
    assert [one.spec.repository.base for one in found if one.spec.repository] == ["main", "develop"]


@pytest.mark.parametrize(
    ("repository", "field"),
    [
        ({"url": "https://ada:s3cretvalue@git.example.org/x"}, "repository.url"),
        ({"url": URL, "base": "a..b"}, "repository.base"),
        ({"path": ".", "ticket": "a b"}, "repository.ticket"),
        ({"path": ".", "bundle": {}}, "repository.bundle"),
        ({"path": ".", "url": URL}, "repository"),
        ({"path": ".", "push": True}, "repository"),
        ({"url": URL, "join": True}, "repository"),
        ({"url": URL, "commit_rest": "perhaps"}, "repository.commit_rest"),
        ({"url": URL, "submodules": "all"}, "repository.submodules"),
        ({}, "repository"),
        ([URL], "repository"),
        (7, "repository"),
    ],
    ids=str,
)
def test_errors_name_the_field_of_the_file(tmp_path: Path, repository: Any, field: str) -> None:
    """With the task, and without a credential."""
    with pytest.raises(HerdError) as refused:
        batch.read(task_file(tmp_path, repository))
    assert refused.value.problem.field == field
    assert f"one: {field}: " in refused.value.line
    assert "s3cretvalue" not in refused.value.line


def test_file_with_two_beginnings_is_refused(tmp_path: Path) -> None:
    """A local repository and an earlier task."""
    with pytest.raises(HerdError, match="can't also begin with resume"):
        batch.read(task_file(tmp_path, {"path": "."}, resume="task-one"))


def test_schedule_has_no_local_repository(tmp_path: Path) -> None:
    """It would have to be uploaded each time; one with a URL is accepted."""
    for words in ([str(task_file(tmp_path, {"path": "."}))], ["do it", "--repo", str(tmp_path), "--", "true"]):
        with pytest.raises(HerdError) as refused:
            scheduled_task(words)
        assert "URL" in refused.value.line or "url" in refused.value.line
    assert scheduled_task(["do it", "--repo", URL, "--", "true"]).task.repository == Repository(url=URL)
    assert scheduled_task([str(task_file(tmp_path, URL))]).task.repository == Repository(url=URL)
