"""A mirror of a repository at git's own HTTP server: fetched, continued from bundles, and pushed."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spawner.repositories.git import GitCredential, GitError, GitFault, GitLimits, RemoteRepository, run_git
from spawner.repositories.mirror import NO_COMMIT, Mirror
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.trial_merges import find_overlaps
from tests.doubles.git_server import USER, GitServer, git_server
from tests.integration.repositories.conftest import TOKEN, Sandbox, Upstream, commit, git
from tests.unit.spawner.test_spawner_branch_transitions import branch

BRANCH = "feature/search"


async def test_branches_of_the_remote_are_fetched(mirror: Mirror, remote: RemoteRepository, upstream: Upstream) -> None:
    """New branches are added, deleted ones removed, rewritten ones replaced; our branches are not changed."""
    await mirror.reset_branch("main", upstream.first)
    second = upstream.commit({"shop.py": "total = 2\n"})
    old = upstream.commit({"old": "1"}, "old")
    await mirror.fetch(remote)
    assert await mirror.remote_branches() == {"main": second, "old": old}
    git(upstream.path, "branch", "-D", "old")
    git(upstream.path, "update-ref", "refs/heads/main", upstream.first)
    await mirror.fetch(remote)
    assert await mirror.remote_branches() == {"main": upstream.first}
    assert await mirror.branches() == {"main": upstream.first}
    assert await mirror.default_branch(remote) == "main"


async def test_work_of_a_sandbox_is_pushed(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream, sandbox: Sandbox
) -> None:
    """The branch is on the remote before the sandbox begins, and has its commits afterwards."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await mirror.push(remote, BRANCH, expected=NO_COMMIT)
    assert upstream.head(BRANCH) == upstream.first
    await sandbox.start(mirror, BRANCH)
    made = commit(sandbox.folder, {"search.py": "found = 1\n"})
    thin = sandbox.bundle(BRANCH, f"^{upstream.first}")
    assert await mirror.import_bundle(thin, BRANCH, expected=upstream.first) == made
    await mirror.push(remote, BRANCH, expected=upstream.first)
    assert (upstream.head(BRANCH), upstream.head("main")) == (made, upstream.first)


async def test_commit_of_the_record_is_pushed(mirror: Mirror, remote: RemoteRepository, upstream: Upstream) -> None:
    """The recorded commit is pushed, though another reader has reset the mirror's branch meanwhile."""
    second = upstream.commit({"shop.py": "total = 2\n"})
    await mirror.fetch(remote)
    await mirror.reset_branch(BRANCH, upstream.first)
    await mirror.push(remote, BRANCH, expected=NO_COMMIT, commit=second)
    assert upstream.head(BRANCH) == second


async def test_commits_that_another_replica_has_added_are_no_fault_of_their_bundle(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox
) -> None:
    """A replica adds them and loses its lease before it records that; a refusal would lose the sandbox's work."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await sandbox.start(mirror, BRANCH)
    made = commit(sandbox.folder, {"search.py": "found = 1\n"})
    bundle = sandbox.bundle(BRANCH)
    assert await mirror.import_bundle(bundle, BRANCH, expected=upstream.first) == made
    with pytest.raises(GitError) as failed:
        await mirror.import_bundle(bundle, BRANCH, expected=upstream.first)
    assert not failed.value.permanent
    await mirror.reset_branch(BRANCH, upstream.first)  # as the next attempt begins
    assert await mirror.import_bundle(bundle, BRANCH, expected=upstream.first) == made


class CollectedMirror(Mirror):
    """A mirror whose garbage the git of a killed writer collects once, while another one is reading."""

    collected = False

    async def contains(self, commit: str, ancestor: str) -> bool:
        if not self.collected:
            self.collected = True
            for name in await self._refs("refs/incoming/"):
                await self.run("update-ref", "-d", f"refs/incoming/{name}")
            await self.git("gc", "--quiet", "--prune=now")
        return await super().contains(commit, ancestor)


async def test_commits_that_are_removed_meanwhile_are_no_fault_of_their_bundle(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, tmp_path: Path
) -> None:
    """A killed spawner left them without a branch; a refusal would lose the sandbox's work."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await sandbox.start(mirror, BRANCH)
    made = commit(sandbox.folder, {"search.py": "found = 1\n"})
    bundle = sandbox.bundle(BRANCH)
    with pytest.raises(GitError, match="removed from the mirror") as failed:
        await CollectedMirror(mirror.path).import_bundle(bundle, BRANCH, expected=upstream.first)
    assert not failed.value.permanent
    assert await mirror.import_bundle(bundle, BRANCH, expected=upstream.first) == made
    await mirror.reset_branch(BRANCH, upstream.first)
    nothing: Any = None
    record = branch(branch=BRANCH, commit=upstream.first, received=())
    with pytest.raises(GitError, match="removed from the mirror") as failed:
        await Mirrors(tmp_path, nothing, nothing, 1).has_already(CollectedMirror(mirror.path), record, made)
    assert not failed.value.permanent
    assert not await Mirrors(tmp_path, nothing, nothing, 1).has_already(mirror, record, made)


async def test_branch_is_deleted_without_its_mirror(
    remote: RemoteRepository, upstream: Upstream, tmp_path: Path
) -> None:
    """After the loss of the folder an empty mirror is enough; a branch at another commit is not deleted."""
    pushed = upstream.commit({"search.py": "found = 1\n"}, BRANCH)
    lost = Mirror(tmp_path / "mirrors" / "lost.git")
    with pytest.raises(GitError) as refused:
        await lost.delete_remote_branch(remote, BRANCH, expected=upstream.first)
    assert refused.value.fault is GitFault.CONFLICT
    await lost.delete_remote_branch(remote, BRANCH, expected=pushed)
    assert upstream.head(BRANCH) == ""


async def test_lost_response_makes_nothing_twice(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream, sandbox: Sandbox
) -> None:
    """Each step can be repeated after it took effect."""
    for _ in range(2):
        await mirror.reset_branch(BRANCH, upstream.first)
        await mirror.push(remote, BRANCH, expected=NO_COMMIT)
    await sandbox.start(mirror, BRANCH)
    made = commit(sandbox.folder, {"search.py": "found = 1\n"})
    assert await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=upstream.first) == made
    assert await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=made) == made
    for _ in range(2):
        await mirror.push(remote, BRANCH, expected=upstream.first)
    for _ in range(2):
        await mirror.delete_remote_branch(remote, BRANCH, expected=made)
        await mirror.delete_branch(BRANCH, expected=made)
    assert (upstream.head(BRANCH), await mirror.branches()) == ("", {})


async def test_push_never_overwrites_what_others_pushed(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream
) -> None:
    """If a user has pushed to the branch, or created one of its name, it is a conflict, and the remote is unchanged."""
    await mirror.reset_branch(BRANCH, upstream.first)
    theirs = upstream.commit({"search.py": "theirs\n"}, BRANCH)
    for expected in (NO_COMMIT, upstream.first):
        with pytest.raises(GitError) as refused:
            await mirror.push(remote, BRANCH, expected=expected)
        assert refused.value.fault is GitFault.CONFLICT
    with pytest.raises(GitError):
        await mirror.delete_remote_branch(remote, BRANCH, expected=upstream.first)
    assert upstream.head(BRANCH) == theirs


async def test_refusal_of_a_hook_is_permanent(mirror: Mirror, remote: RemoteRepository, upstream: Upstream) -> None:
    """The error of a protected branch has the reason."""
    hook = upstream.path / "hooks" / "update"
    hook.write_text("#!/bin/sh\necho this branch is protected >&2\nexit 1\n")
    hook.chmod(0o755)
    await mirror.reset_branch(BRANCH, upstream.first)
    with pytest.raises(GitError, match="hook declined") as refused:
        await mirror.push(remote, BRANCH, expected=NO_COMMIT)
    assert (refused.value.fault, refused.value.permanent) == (GitFault.REFUSED, True)


async def test_branch_is_only_ever_continued(mirror: Mirror, upstream: Upstream, sandbox: Sandbox) -> None:
    """A rewritten history of the sandbox, or a branch that has moved meanwhile, changes nothing."""
    second = upstream.commit({"shop.py": "total = 2\n"})
    git(mirror.path, "fetch", "--quiet", str(upstream.path), "main")
    await mirror.reset_branch(BRANCH, second)
    await sandbox.start(mirror, BRANCH)
    git(sandbox.folder, "reset", "--quiet", "--hard", upstream.first)
    commit(sandbox.folder, {"search.py": "1"})
    moved = GitFault.UNAVAILABLE  # retried from the commit that the branch is to have
    for expected, fault in ((second, GitFault.CONFLICT), (NO_COMMIT, moved), (upstream.first, moved)):
        with pytest.raises(GitError) as refused:
            await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=expected)
        assert refused.value.fault is fault
    assert await mirror.branches() == {BRANCH: second}
    assert git(mirror.path, "for-each-ref", "refs/incoming") == ""


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "other branch", "incomplete"])
async def test_damaged_bundle_changes_nothing(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, damage: str
) -> None:
    """The error is typed, and the next complete bundle is accepted."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await sandbox.start(mirror, BRANCH)
    one = commit(sandbox.folder, {"a": "1"})
    two = commit(sandbox.folder, {"a": "2"})
    whole = sandbox.bundle(BRANCH).read_bytes()
    bundle = sandbox.bundle(BRANCH, f"^{one}") if damage == "incomplete" else sandbox.bundle(BRANCH)
    if damage == "other branch":
        git(sandbox.folder, "branch", "other")
        bundle = sandbox.bundle("other")
    elif damage != "incomplete":
        bundle.write_bytes({"empty": b"", "cut": whole[:-40], "text": b"hello\n" * 9}[damage])
    with pytest.raises(GitError):
        await mirror.import_bundle(bundle, BRANCH, expected=upstream.first)
    assert await mirror.branches() == {BRANCH: upstream.first}
    bundle.write_bytes(whole)
    assert await mirror.import_bundle(bundle, BRANCH, expected=upstream.first) == two


async def test_conflicts_are_found_without_a_trace(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream
) -> None:
    """A trial merge names the files, and stores no object."""
    ours = upstream.commit({"shop.py": "total = 2\n", "a b\n": "ours"}, "ours")
    git(upstream.clone, "checkout", "--quiet", "main")
    theirs = upstream.commit({"shop.py": "total = 3\n", "a b\n": "theirs"}, "theirs")
    git(upstream.clone, "checkout", "--quiet", "main")
    apart = upstream.commit({"else": "1"}, "apart")
    await mirror.fetch(remote)
    before = sorted(mirror.path.rglob("*"))
    assert await mirror.conflicts(ours, theirs) == ["a b\n", "shop.py"]
    assert await mirror.conflicts(ours, apart) == []
    assert sorted(mirror.path.rglob("*")) == before


async def test_branch_that_cannot_be_merged_hides_no_other_conflict(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream
) -> None:
    """Git refuses to merge histories without a common commit, such as that of a base that was replaced."""
    ours = upstream.commit({"shop.py": "total = 2\n"}, "ours")
    git(upstream.clone, "checkout", "--quiet", "main")
    theirs = upstream.commit({"shop.py": "total = 3\n"}, "theirs")
    git(upstream.clone, "checkout", "--quiet", "--orphan", "alone")
    alone = git(upstream.clone, "commit-tree", "-m", "alone", f"{ours}^{{tree}}")
    git(upstream.clone, "push", "--quiet", "origin", f"{alone}:refs/heads/alone")
    await mirror.fetch(remote)
    mine, other, unrelated = (
        branch(id=f"br-{name}", branch=name, commit=commit, base_commit=upstream.first)
        for name, commit in (("mine", ours), ("other", theirs), ("unrelated", alone))
    )
    found = await find_overlaps(mirror, mine, [mine, unrelated, other])
    assert [(overlap.branch, overlap.paths) for overlap in found] == [("other", ["shop.py"])]


async def test_token_is_in_no_argument_file_or_error(
    mirror: Mirror, remote: RemoteRepository, server: GitServer, upstream: Upstream, tmp_path: Path
) -> None:
    """The token reaches the server in a header; a wrong one is `denied`."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await mirror.push(remote, BRANCH, expected=NO_COMMIT)
    files = [path for path in mirror.path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in repr(remote)
    traced = tmp_path / "trace"  # git writes the arguments of every process that it starts
    environment = {"GIT_TRACE": str(traced)}
    await run_git("ls-remote", remote.url, credential=remote.credential, environment=environment)
    arguments = traced.read_text()
    assert "give get" in arguments
    assert TOKEN not in arguments
    wrong = RemoteRepository(remote.url, GitCredential(server.url, USER, "ghs_wrong"))
    for bad in (wrong, RemoteRepository(remote.url)):
        with pytest.raises(GitError) as refused:
            await Mirror(tmp_path / "other.git").fetch(bad)
        assert refused.value.fault is GitFault.DENIED
        assert "ghs_" not in str(refused.value)


async def test_other_origin_never_gets_the_token(mirror: Mirror, remote: RemoteRepository, server: GitServer) -> None:
    """An origin to which the server redirects is not contacted: it may be in the spawner's own network."""
    async with git_server(server.root, "another token") as other:
        server.redirect = other.url
        with pytest.raises(GitError) as refused:
            await mirror.fetch(remote)
    assert refused.value.permanent
    assert not other.requests


async def test_outage_is_no_permanent_error(mirror: Mirror, remote: RemoteRepository, server: GitServer) -> None:
    """While the server fails or does not run, the error is `unavailable`; afterwards it is fetched."""
    server.failing = 1
    with pytest.raises(GitError) as failed:
        await mirror.fetch(remote)
    assert (failed.value.fault, failed.value.permanent) == (GitFault.UNAVAILABLE, False)
    await mirror.fetch(remote)
    with pytest.raises(GitError) as gone:
        await mirror.fetch(RemoteRepository("http://127.0.0.1:9/team/shop.git"))
    assert gone.value.fault is GitFault.UNAVAILABLE
    with pytest.raises(GitError) as missing:
        await mirror.fetch(RemoteRepository(remote.url.replace("shop", "none"), remote.credential))
    assert missing.value.fault is GitFault.NOT_FOUND


@pytest.mark.parametrize("url", ["ext::sh -c true", "ssh://127.0.0.1/x", "git://127.0.0.1/x", "--upload-pack=touch x"])
async def test_other_transports_are_refused(tmp_path: Path, url: str) -> None:
    """Other transports execute nothing and open no connection."""
    with pytest.raises(GitError):
        await Mirror(tmp_path / "mirror.git").fetch(RemoteRepository(url))
    assert not (tmp_path / "x").exists()


async def test_repository_larger_than_the_limit_is_refused(
    remote: RemoteRepository, upstream: Upstream, tmp_path: Path
) -> None:
    """The pack of a repository over the limit is not stored."""
    (upstream.clone / "large").write_bytes(os.urandom(3 * 1024**2))
    upstream.commit({})
    mirror = Mirror(tmp_path / "small.git", GitLimits(file_bytes=1024**2))
    with pytest.raises(GitError) as refused:
        await mirror.fetch(remote)
    assert refused.value.fault is GitFault.TOO_LARGE
    assert await mirror.remote_branches() == {}


async def test_killed_writer_blocks_nothing(mirror: Mirror, remote: RemoteRepository, upstream: Upstream) -> None:
    """The next writer removes lock files and incomplete packs of a killed git."""
    for left in ("packed-refs.lock", "refs/heads/feature/search.lock", "objects/pack/tmp_pack_x1", "shallow.lock"):
        (mirror.path / left).parent.mkdir(parents=True, exist_ok=True)
        (mirror.path / left).write_bytes(b"x")
    await mirror.reset_branch(BRANCH, upstream.first)
    await mirror.fetch(remote)
    assert await mirror.branches() == {BRANCH: upstream.first}
    assert not list(mirror.path.rglob("tmp_*"))


async def test_cancelled_command_leaves_no_process(mirror: Mirror, remote: RemoteRepository, server: GitServer) -> None:
    """Git and its children are ended while the server does not respond; the next writer is not blocked."""
    server.silent = True
    server.received.clear()
    fetching = asyncio.create_task(mirror.fetch(remote))
    await server.received.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert not [line for line in commands() if str(mirror.path) in line]
    server.silent = False
    await mirror.fetch(remote)


def commands() -> list[str]:
    """The arguments of every process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


async def test_two_writers_take_turns(mirror: Mirror, upstream: Upstream) -> None:
    """Two processes that create different branches at once both succeed."""
    other = Mirror(mirror.path)
    names = [f"feature/{number}" for number in range(6)]
    pairs = zip([mirror, other] * 3, names, strict=True)
    await asyncio.gather(*(one.reset_branch(name, upstream.first) for one, name in pairs))
    assert sorted(await mirror.branches()) == names


async def test_bundle_for_a_sandbox_has_the_base_as_of_the_last_fetch(
    upstream: Upstream, remote: RemoteRepository, mirror: Mirror, tmp_path: Path
) -> None:
    """An agent can merge the base; a deleted base is left out."""
    await mirror.reset_branch("feature/x", upstream.first)
    newer = upstream.commit({"shop.py": "total = 2\n"})
    await mirror.fetch(remote)
    await mirror.write_bundle("feature/x", tmp_path / "one", base="main")
    shown = git(tmp_path, "bundle", "list-heads", str(tmp_path / "one")).splitlines()
    assert sorted(shown) == sorted([f"{upstream.first} refs/heads/feature/x", f"{newer} refs/remotes/origin/main"])
    await mirror.write_bundle("feature/x", tmp_path / "two", base="gone")
    assert len(git(tmp_path, "bundle", "list-heads", str(tmp_path / "two")).splitlines()) == 1
