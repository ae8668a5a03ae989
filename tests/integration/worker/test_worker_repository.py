"""A task with a repository: its branch is the work tree, and its commits come back in a bundle."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.task_repositories import BASE, BRANCH, Origin, git


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "origin")


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("agent.") for event in events if event.type != "agent.heartbeat"]


LOOKS = (
    "git status --short --branch; git log --oneline --format=%s; git config user.name; git remote -v; "
    "git rev-parse --abbrev-ref origin/HEAD; echo $BRANCH_NAME; ls .git/hooks 2>/dev/null; cat src/a.py"
)


@pytest.mark.parametrize("way", ["mirror", "bundle"])
async def test_branch_is_checked_out_as_an_ordinary_clone(sandbox: Any, origin: Origin, way: str) -> None:
    """The clone is on its branch, knows the base, has a remote without credential, no hooks, and no reported change."""
    origin.continue_branch({"src/a.py": "a = 2\n"})
    field = origin.by_mirror(sandbox) if way == "mirror" else await origin.by_bundle(sandbox)
    sandbox.task(LOOKS, repository=field)
    assert await sandbox.run() == 0
    assert (await sandbox.output()).splitlines() == [
        f"## {BRANCH}",
        "Earlier work",
        "More",
        "Sandherd agent",
        "origin\thttps://example.org/owner/name (fetch)",
        "origin\thttps://example.org/owner/name (push)",
        f"origin/{BASE}",
        BRANCH,
        "a = 2",
    ]
    assert await sandbox.events("error", "file_edited") == []
    assert not (sandbox.work / ".git/objects/info/alternates").exists()
    git(sandbox.work, "fsck", "--strict")


@pytest.mark.parametrize("way", ["mirror", "bundle"])
async def test_commits_and_the_rest_come_back_in_a_bundle(sandbox: Any, origin: Origin, way: str) -> None:
    """A bare clone of the base accepts the bundle, which is published before the end."""
    field = origin.by_mirror(sandbox) if way == "mirror" else await origin.by_bundle(sandbox)
    script = "echo b > b; git add b; git commit -qm 'Add b'; echo c > c; rm README.md; mkdir build; echo o > build/o"
    sandbox.task(script, text="Add things\nand more", repository=field)
    assert await sandbox.run() == 0
    assert kinds(await sandbox.events())[-3:] == ["branch_saved", "completed", "shutdown"]
    saved = (await sandbox.event("branch_saved")).data
    assert (saved.branch, saved.commits, saved.committed_rest, saved.left_out) == (BRANCH, 2, True, None)
    assert saved.bundle.media_type == "application/x-git-bundle"
    clone = await origin.received(sandbox, saved)
    assert git(clone, "log", "--format=%an %ae %s", f"{origin.base}..saved").splitlines() == [
        "Sandherd agent agent@sandherd.invalid Add things",
        "Sandherd agent agent@sandherd.invalid Add b",
    ]
    assert git(clone, "ls-tree", "-r", "--name-only", "saved").split() == [".gitignore", "b", "c", "src/a.py"]
    assert "Sandherd-Task: task-1" in git(clone, "log", "-1", "--format=%B", "saved")


async def test_unchanged_branch_is_published_without_a_bundle(sandbox: Any, origin: Origin) -> None:
    """An unchanged branch is one event without a bundle, in which nothing is left out."""
    sandbox.task("git log", repository=origin.by_mirror(sandbox))
    assert await sandbox.run() == 0
    (saved,) = [event.data for event in await sandbox.events("branch_saved")]
    assert (saved.commit, saved.bundle, saved.commits, saved.left_out) == (None, None, 0, None)


async def test_rest_is_committed_only_if_wanted(sandbox: Any, origin: Origin) -> None:
    """Uncommitted changes are committed only if requested; otherwise the bundle has the agent's commits."""
    script = "echo b > b; git add b; git commit -qm 'Add b'; echo c > c"
    sandbox.task(script, repository=origin.by_mirror(sandbox, commit_rest=False))
    assert await sandbox.run() == 0
    saved = (await sandbox.event("branch_saved")).data
    assert (saved.commits, saved.committed_rest) == (1, False)
    clone = await origin.received(sandbox, saved)
    assert git(clone, "log", "-1", "--format=%s", "saved") == "Add b"


async def test_failed_attempt_saves_its_branch(sandbox: Any, origin: Origin) -> None:
    """The branch is saved before work tree and failure; its bundle begins at the base, not at the checkout."""
    origin.continue_branch({"src/a.py": "a = 2\n"})
    sandbox.task("echo half > half; echo trying; exit 3", repository=origin.by_mirror(sandbox))
    assert await sandbox.run() == 0
    assert kinds(await sandbox.events())[-5:] == [
        "branch_saved",
        "work_saved",
        "transcript_saved",
        "failed",
        "shutdown",
    ]
    saved = (await sandbox.event("branch_saved")).data
    assert saved.commits == 2
    clone = await origin.received(sandbox, saved)
    assert git(clone, "log", "--format=%s", "saved").splitlines() == ["do it", "Earlier work", "More"]


async def test_task_files_are_written_over_the_checkout(sandbox: Any, origin: Origin) -> None:
    """Files of the task replace those of the checkout, also a link of the repository."""
    (origin.source / "link").symlink_to("README.md")
    origin.commit()
    git(origin.source, "branch", "--force", BRANCH)
    origin.base = origin.tip = git(origin.source, "rev-parse", BASE)
    files = {"src/a.py": "mine\n", "new/x": "new\n", "link": "file\n"}
    sandbox.task("cat src/a.py new/x link README.md", repository=origin.by_mirror(sandbox), files=files)
    assert await sandbox.run() == 0
    assert await sandbox.output() == "mine\nnew\nfile\nhello\n"


async def test_missing_git_is_a_failure_that_names_the_fix(sandbox: Any, origin: Origin, tmp_path: Path) -> None:
    """Without git the agent does not start, and the failure names the remedy, without a traceback."""
    sandbox.task("echo started", repository=origin.by_mirror(sandbox))
    assert await sandbox.run(PATH=str(tmp_path / "nowhere")) == 0
    failed = (await sandbox.event("failed")).data
    assert failed.error_type == "start"
    assert "apt-get install git" in failed.error
    assert await sandbox.output() == ""
    assert await sandbox.events("branch_saved") == []


async def test_missing_mount_is_a_failure_that_names_the_path(sandbox: Any, origin: Origin, tmp_path: Path) -> None:
    """The failure names the path, and is permanent."""
    sandbox.task("echo started", repository=origin.by_mirror(sandbox))
    sandbox.environment["SANDHERD_REPOSITORY"] = str(tmp_path / "none")
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, str(tmp_path / "none") in failed.error) == ("start", True)


async def test_stopped_attempt_saves_its_branch(sandbox: Any, origin: Origin) -> None:
    """A stopped attempt saves its branch within the grace, before its end, with an unfinished command's changes."""
    sandbox.task("echo half > half; sleep 600", repository=origin.by_mirror(sandbox))
    await sandbox.start()
    await sandbox.event("file_edited")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    seen = kinds(await sandbox.events())
    assert seen.index("branch_saved") < seen.index("failed")
    saved = (await sandbox.event("branch_saved")).data
    assert git(await origin.received(sandbox, saved), "show", "saved:half") == "half"


async def test_recovery_saves_the_branch_of_a_lost_attempt(sandbox: Any, origin: Origin) -> None:
    """The branch is saved before the worker's loss is published; the commit's message has no secret."""
    env = {"KEY": "hunter2-hunter2"}
    sandbox.task(
        "echo half > half; sleep 600",
        repository=origin.by_mirror(sandbox),
        text="Use hunter2-hunter2",
        env=env,
        secret_env=["KEY"],
    )
    await sandbox.start()
    await sandbox.event("file_edited")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert await sandbox.run("--recover", SANDHERD_LOST_SIGNAL="9") == 0
    seen = kinds(await sandbox.events())
    assert seen.index("branch_saved") < seen.index("failed")
    saved = (await sandbox.event("branch_saved")).data
    clone = await origin.received(sandbox, saved)
    assert git(clone, "log", "-1", "--format=%s", "saved") == "Use [redacted]"


async def test_worker_that_is_stopped_during_the_checkout_saves_nothing(
    sandbox: Any, origin: Origin, desk: Any, eventually: Any
) -> None:
    """A checkout does not delay the stop, and an incomplete repository is not saved."""
    (origin.source / "large").write_bytes(os.urandom(512 * 1024))
    origin.commit()
    git(origin.source, "branch", "--force", BRANCH)
    field = await origin.by_bundle(sandbox)
    desk.delay = asyncio.Event()
    sandbox.task("touch begun", repository=field)
    await sandbox.start()
    await eventually(lambda: any(requested.after for requested in desk.fetched), "the middle of the fetch")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert (await sandbox.event("failed")).data.error_type == "stopped"
    assert await sandbox.events("branch_saved") == []
    assert not (sandbox.work / "begun").exists()
    desk.delay.set()


async def test_changes_while_a_sandbox_lingers_are_saved(sandbox: Any, origin: Origin) -> None:
    """Changes while the sandbox lingers are saved again at its end, if there are any."""
    sandbox.task("echo 1 > one", repository=origin.by_mirror(sandbox), linger_seconds=600)
    await sandbox.start()
    await sandbox.event("waiting")
    await sandbox.exec("sh", "-c", "echo 2 > two; git add .; git commit -qm Two")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    saved = [event.data for event in await sandbox.events("branch_saved")]
    assert [(one.commits, one.committed_rest) for one in saved] == [(1, True), (2, False)]
    clone = await origin.received(sandbox, saved[-1])
    assert git(clone, "log", "--format=%s", "saved").splitlines() == ["Two", "do it", "More"]


async def test_expired_bundle_is_a_permanent_failure(sandbox: Any, origin: Origin) -> None:
    """The failure's text states the remedy."""
    field = await origin.by_bundle(sandbox)
    field["checkout"]["bundle"] |= {"artifact": "art-none", "subject": "sandherd.v1.artifact.default.x.art-none"}
    sandbox.task("echo started", repository=field)
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, "submit the task again" in failed.error) == ("start", True)


async def test_task_files_are_not_written_through_a_link_of_the_repository(sandbox: Any, origin: Origin) -> None:
    """A link of the repository that leads out of the work tree is a permanent failure."""
    (origin.source / "out").symlink_to("/tmp")
    origin.commit()
    git(origin.source, "branch", "--force", BRANCH)
    origin.base = origin.tip = git(origin.source, "rev-parse", BASE)
    sandbox.task("echo started", repository=origin.by_mirror(sandbox), files={"out/sandherd-test": "x"})
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, "leads out of the work tree" in failed.error) == ("start", True)
    assert not Path("/tmp/sandherd-test").exists()


@pytest.mark.parametrize("way", ["mirror", "bundle"])
async def test_repository_of_sha256_is_checked_out_and_saved(sandbox: Any, tmp_path: Path, way: str) -> None:
    """A repository with the longer ids of SHA-256 is checked out and saved."""
    origin = Origin(tmp_path / "other", "sha256")
    field = origin.by_mirror(sandbox) if way == "mirror" else await origin.by_bundle(sandbox)
    sandbox.task("echo 1 > new", repository=field)
    assert await sandbox.run() == 0
    saved = (await sandbox.event("branch_saved")).data
    assert (len(saved.commit), saved.commits) == (64, 1)
    await origin.received(sandbox, saved)


async def test_agents_git_has_no_credential_and_knows_tags(sandbox: Any, origin: Origin) -> None:
    """A fetch of the agent fails at once; git's configuration has only the settings that the worker wrote."""
    git(origin.source, "tag", "v1.0", origin.base)
    git(origin.mirrored(), "fetch", "--quiet", str(origin.source), "refs/tags/*:refs/tags/*")
    sandbox.task("git describe --tags; git config --local --list | sort", repository=origin.by_mirror(sandbox))
    assert await sandbox.run() == 0
    lines = (await sandbox.output()).splitlines()
    assert lines[0] == "v1.0"
    assert {line.partition("=")[0] for line in lines[1:]} == {
        "core.repositoryformatversion",
        "core.filemode",
        "core.bare",
        "core.logallrefupdates",
        "remote.origin.url",
        "remote.origin.fetch",
        "user.name",
        "user.email",
    }
