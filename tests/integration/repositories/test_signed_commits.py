"""Commits that the spawner signs: real keys, checked by git and ssh-keygen."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sandherd.contracts.repositories import Repository
from spawner.repositories import commit_signer
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.commit_signer import CommitSigner, signed_commit
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.mirror import Mirror
from tests.integration.repositories.conftest import Sandbox, Upstream, commit, git
from tests.integration.repositories.test_branches import (
    WAITS,
    AgentsClone,
    Make,
    clone_on,
    home,
    person,
    reaches,
    repository,
    spawner,
)
from tests.integration.spawner.conftest import ProjectUser
from tests.unit.spawner.test_spawner_pull_request_steps import branch

__all__ = ["home", "person", "repository", "spawner"]
COMMITTER = "Herd <herd@example.com>"


class Key(NamedTuple):
    """A key, and the file of its public half as `gpg.ssh.allowedSignersFile`."""

    file: Path
    signers: Path


def new_key(folder: Path, kind: str, passphrase: str = "") -> Key:
    """Create a key by ssh-keygen(1)."""
    file, signers = folder / f"key-{kind}", folder / f"signers-{kind}"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(file)], check=True)
    signers.write_text(f"herd@example.com {file.with_name(file.name + '.pub').read_text()}")
    return Key(file, signers)


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return new_key(tmp_path, "ed25519")


def verified(folder: Path, key: Key, commit: str) -> bool:
    """Whether git finds a valid signature of this key."""
    config = ("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={key.signers}")
    return subprocess.run(["git", *config, "verify-commit", commit], cwd=folder, check=False).returncode == 0


async def test_agents_commits_are_signed_before_they_are_pushed(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, key: Key, herd: Any, tmp_path: Path
) -> None:
    """Each commit is signed, also later ones of the sandbox, and those of the next attempt, which continues them.

    The record has what was pushed; the author, message and tree are the agent's.
    """
    async with spawner(signing_key=key.file, signing_committer=COMMITTER).running():
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        name, agent = view.branch, AgentsClone(herd, clone_on(upstream, tmp_path / "one", view.branch), sandbox)
        commit(agent.folder, {"a": "1\n"}, "first\n\nof two")
        own = commit(agent.folder, {"a": "2\n"}, "second")
        await agent.save(name, view.base_commit)
        first = await reaches(person, task, lambda found: found.pushed_commit is not None)
        commit(agent.folder, {"b": "1\n"}, "third")
        await agent.save(name, view.base_commit)
        second = await reaches(person, task, lambda found: found.pushed_commit not in {None, first.commit})
        assert (first.commits, second.commits, second.pushed_commit) == (2, 3, second.commit)
        git(tmp_path, "clone", "--quiet", "--branch", name, str(upstream.path), str(tmp_path / "two"))
        again = AgentsClone(herd, tmp_path / "two", sandbox)
        commit(again.folder, {"c": "1\n"}, "fourth")
        await again.save(name, view.base_commit)
        third = await reaches(person, task, lambda found: found.commits == 4 and found.pushed_commit == found.commit)
    commits = git(upstream.path, "rev-list", "--reverse", f"main..{name}").split()
    assert commits[-1] == third.commit
    assert [verified(upstream.path, key, one) for one in commits] == [True] * 4
    assert not verified(upstream.path, key, upstream.first)
    shown = git(upstream.path, "log", "--format=%an|%cn <%ce>|%s|%T", "--reverse", f"main..{name}").split("\n")
    assert [one.split("|")[:3] for one in shown] == [
        ["Ada", COMMITTER, text] for text in ("first", "second", "third", "fourth")
    ]
    assert shown[1].split("|")[3] == git(agent.folder, "rev-parse", f"{own}^{{tree}}")
    assert git(upstream.path, "show", "-s", "--format=%b", commits[0]) == "of two"
    saved = [event["data"]["commit"] for event in person.unique() if event["type"] == "branch.saved"]
    assert saved == [first.commit, second.commit, third.commit]
    assert key.file.read_text().split("\n")[1] not in str(person.events)


async def imported(mirror: Mirror, sandbox: Sandbox, record: BranchRecord, signer: CommitSigner) -> str:
    """The commit of a branch in the mirror after a sandbox saved it."""

    async def accept(found: str) -> str:
        return await signer.signed(mirror, record, found)

    bundle = sandbox.bundle(record.branch)
    return await mirror.import_bundle(
        bundle, record.branch, expected=record.commit, unsigned=record.unsigned, accept=accept
    )


async def test_merges_are_signed_and_commits_of_others_are_not_made_again(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, tmp_path: Path
) -> None:
    """A merge has the base's own commit as its parent; the agent's signature is replaced.

    A repetition after a crash creates the same commits.
    """
    key = new_key(tmp_path, "rsa")
    record = branch(branch="feature/x", base_commit=upstream.first, commit=upstream.first, pushed=None)
    await mirror.reset_branch("feature/x", upstream.first)
    await sandbox.start(mirror, "feature/x")
    newer = upstream.commit({"README.md": "newer\n"})
    git(sandbox.folder, "fetch", "--quiet", str(upstream.path), "main:base")
    foreign = new_key(tmp_path, "ed25519")
    signs = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={foreign.file}")
    (sandbox.folder / "x").write_text("1\n")
    git(sandbox.folder, "add", "x")
    git(sandbox.folder, *signs, "commit", "--quiet", "-S", "--message", "x")
    git(sandbox.folder, "merge", "--quiet", "--no-edit", "base")
    await mirror.run("fetch", "--quiet", str(upstream.path), "+refs/heads/*:refs/remotes/origin/*")
    signer = CommitSigner(key.file, COMMITTER)
    made = await imported(mirror, sandbox, record, signer)
    one, two, three = git(mirror.path, "show", "-s", "--format=%H %P", made).split()
    assert (one, three) == (made, newer)
    assert verified(mirror.path, key, made)
    assert verified(mirror.path, key, two)
    await mirror.reset_branch("feature/x", upstream.first)
    assert await imported(mirror, sandbox, record, signer) == made
    first = record.model_copy(update={"commit": made, "unsigned": git(sandbox.folder, "rev-parse", "HEAD")})
    git(sandbox.folder, "checkout", "--quiet", "-b", "side", "HEAD^")
    commit(sandbox.folder, {"y": "1\n"})
    git(sandbox.folder, "checkout", "--quiet", "feature/x")
    git(sandbox.folder, "merge", "--quiet", "--no-edit", "side")
    later = await imported(mirror, sandbox, first, signer)
    assert git(mirror.path, "show", "-s", "--format=%P", later).split()[0] == made
    assert git(mirror.path, "rev-list", "--count", f"{made}..{later}") == "2"


async def test_sandbox_continues_signed_commits_in_a_restored_mirror(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, remote: RemoteRepository, tmp_path: Path
) -> None:
    """The mirror was restored from the signed commits, and does not have those of the sandbox."""
    signer = CommitSigner(new_key(tmp_path, "ed25519").file, COMMITTER)
    record = branch(branch="feature/x", base_commit=upstream.first, commit=upstream.first, pushed=None)
    await mirror.reset_branch("feature/x", upstream.first)
    await sandbox.start(mirror, "feature/x")
    own = commit(sandbox.folder, {"x": "1\n"})
    made = await imported(mirror, sandbox, record, signer)
    restored = Mirror(tmp_path / "restored" / "shop.git")
    await restored.fetch(remote)
    await restored.reset_branch("feature/x", upstream.first)
    await mirror.write_bundle("feature/x", tmp_path / "signed", since=upstream.first)
    await restored.import_bundle(tmp_path / "signed", "feature/x", expected=upstream.first)
    assert not await restored.has_commit(own)
    commit(sandbox.folder, {"x": "2\n"})
    saved = record.model_copy(update={"commit": made, "unsigned": own})
    later = await imported(restored, sandbox, saved, signer)
    assert git(restored.path, "show", "-s", "--format=%P", later) == made


def test_only_the_headers_that_git_reads_are_retained() -> None:
    """Other headers that name a parent or a tree, which git ignores, do not become effective by the signature."""
    head = b"tree 1\nparent 2\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 2 +0100\n"
    extra = b"gpgsig x\n y\nencoding ISO-8859-1\ntree 3\nparent 4\nauthor B <b@c> 1 +0000\n"
    made = signed_commit(head + extra + b"\ntext\n\nmore", {"2": "5"}, COMMITTER, lambda _: b"one\ntwo\n")
    assert made == (
        b"tree 1\nparent 5\nauthor A <a@b> 1 +0000\ncommitter Herd <herd@example.com> 2 +0100\n"
        b"encoding ISO-8859-1\ngpgsig one\n two\n\ntext\n\nmore"
    )


async def test_what_can_not_be_signed_waits_or_is_refused(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait if the operator's key can't be used, and are refused if there are too many. No key is shown."""
    record = branch(branch="feature/x", base_commit=upstream.first, commit=upstream.first, pushed=None)
    await mirror.reset_branch("feature/x", upstream.first)
    await sandbox.start(mirror, "feature/x")
    commit(sandbox.folder, {"x": "1\n"})
    locked = tmp_path / "locked"
    new_key(tmp_path, "ed25519", passphrase="secret").file.rename(locked)
    for file in (locked, tmp_path / "missing", upstream.clone / "README.md"):
        with pytest.raises(GitError) as waits:
            await imported(mirror, sandbox, record, CommitSigner(file, COMMITTER))
        assert (waits.value.fault, waits.value.permanent) == (GitFault.UNAVAILABLE, False)
    key = new_key(tmp_path, "ed25519")
    monkeypatch.setattr(commit_signer, "MAX_COMMITS", 3)
    for number in range(3):
        git(sandbox.folder, "commit", "--quiet", "--allow-empty", "--message", str(number))
    with pytest.raises(GitError) as refused:
        await imported(mirror, sandbox, record, CommitSigner(key.file, COMMITTER))
    assert refused.value.permanent
    assert (await mirror.branches())["feature/x"] == upstream.first
