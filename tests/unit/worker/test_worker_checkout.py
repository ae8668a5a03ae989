"""The objects of a mirror are copied as they are, also while the mirror is written."""

import os
import shutil
from pathlib import Path

import pytest

from sandherd.contracts.specs import TaskSpec
from sandherd_worker.repository import object_copy
from sandherd_worker.repository.commit_identity import CommitIdentity, identity_of
from sandherd_worker.repository.object_copy import StoppedError, copy_objects
from sandherd_worker.repository.uncommitted_changes import message_of
from tests.task_repositories import Origin, git


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    found = Origin(tmp_path / "origin")
    found.continue_branch({"src/a.py": "a = 2\n"})
    return found


def empty(folder: Path) -> Path:
    git(folder.parent, "init", "--quiet", "--bare", str(folder))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_packs_and_loose_objects_are_copied(origin: Origin, tmp_path: Path, packed: bool) -> None:
    """All packs and loose objects are copied, and no other files, such as alternates, locks and unfinished files."""
    mirror = origin.mirrored()
    if packed:
        git(mirror, "repack", "-adq", "--write-bitmap-index")
        git(mirror, "multi-pack-index", "write")
    (mirror / "objects/info/alternates").write_text("/etc\n")
    (mirror / "objects/pack/tmp_pack_x").write_text("part")
    (mirror / "objects/pack/pack-00.pack").write_text("no index yet")
    copy = empty(tmp_path / "copy")
    copy_objects(mirror, copy / "objects")
    git(copy, "update-ref", "refs/heads/x", origin.tip)
    assert "missing" not in git(copy, "fsck", "--strict")
    names = {path.name for path in (copy / "objects").rglob("*") if path.is_file()}
    assert not names & {"alternates", "tmp_pack_x", "pack-00.pack", "multi-pack-index"}
    assert git(copy, "rev-list", "--count", "x") == "2"


def test_mirror_may_be_repacked_meanwhile(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a pack was removed before it is copied, the pack that has replaced it is copied."""
    mirror, copy = origin.mirrored(), empty(tmp_path / "copy")
    git(mirror, "repack", "-adq")
    names = object_copy._names
    began: list[bool] = []

    def repacking(objects: Path) -> list[str]:
        found = list(names(objects))
        if not began:
            began.append(True)
            git(mirror, "config", "pack.compression", "0")
            git(mirror, "repack", "-adqF", "--depth=0", "--window=0")
            for pack in (mirror / "objects/pack").iterdir():
                pack.rename(pack.with_name(pack.name.replace("pack-", "pack-abc", 1)))
        return found

    monkeypatch.setattr(object_copy, "_names", repacking)
    copy_objects(mirror, copy / "objects")
    assert git(copy, "cat-file", "-t", origin.tip) == "commit"


def test_missing_mirror_and_a_stop_end_the_copy(origin: Origin, tmp_path: Path) -> None:
    """A missing mirror raises `OSError`, and a stop `StoppedError`. Incomplete files only have temporary names."""
    copy = empty(tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        copy_objects(tmp_path / "none", copy / "objects")
    with pytest.raises(StoppedError):
        copy_objects(origin.mirrored(), copy / "objects", lambda: True)
    left = [path.name for path in (copy / "objects").rglob("*") if path.is_file()]
    assert all(name.startswith("tmp_") for name in left)


def test_copy_needs_no_support_of_the_kernel(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `copy_file_range` fails, as between some file systems, `sendfile` is used."""

    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    copy = empty(tmp_path / "copy")
    copy_objects(origin.mirrored(), copy / "objects")
    assert git(copy, "cat-file", "-t", origin.tip) == "commit"
    shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("env", "secret", "found"),
    [
        ({}, [], CommitIdentity()),
        ({"GIT_AUTHOR_NAME": "A\nB", "GIT_AUTHOR_EMAIL": "<a@b>"}, [], CommitIdentity("AB", "a@b")),
        ({"GIT_AUTHOR_NAME": "<>", "GIT_AUTHOR_EMAIL": ""}, [], CommitIdentity()),
        ({"GIT_AUTHOR_NAME": "secret-name"}, ["GIT_AUTHOR_NAME"], CommitIdentity()),
    ],
)
def test_identity_is_that_of_the_tasks_variables(env: dict[str, str], secret: list[str], found: CommitIdentity) -> None:
    """Characters that git would refuse or misread are removed, and secret variables are ignored.

    The co-author is a field of the task.
    """
    document = {"text": "x", "harness": {"kind": "command", "argv": ["x"]}, "env": env, "secret_env": secret}
    assert identity_of(TaskSpec.model_validate(document)) == found
    known = document | {"co_author": {"name": "Ann Example", "email": "ann@x.org"}}
    assert identity_of(TaskSpec.model_validate(known)).co_author == "Ann Example <ann@x.org>"


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Fix it", "Fix it"),
        ("\n\n  Fix\tit \r\nmore", "Fix it"),
        ("x" * 100, "x" * 71 + "…"),
        ("\x00\x1b\n", "\N{REPLACEMENT CHARACTER}"),
        ("\x1b", "Work of the agent"),
        ("", "Work of the agent"),
        ("Closes #3, @octocat [skip ci]", "Closes #\u200b3, @\u200boctocat [\u200bskip ci]"),
    ],
)
def test_summary_is_one_short_line_of_the_task(text: str, summary: str) -> None:
    """The summary is one line of limited length without control characters."""
    assert message_of(text, "task-1", CommitIdentity()).split("\n")[0] == summary
