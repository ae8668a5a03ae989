"""Git LFS: the control plane fetches and stores objects over HTTP; the sandbox only has the filter."""

import asyncio
import hashlib
import shutil
from functools import partial
from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import PushBranch
from spawner.parts import OpenRuntimes
from spawner.repositories import lfs
from spawner.repositories.git import GitError, GitFault, GitLimits, RemoteRepository
from spawner.repositories.lfs import REF, LfsObjects, restore_objects, take_objects
from spawner.repositories.mirror import Mirror
from spawner.repositories.repository_hosts import RepositoryHosts
from tests.doubles.git_server import GitServer
from tests.doubles.lfs_store import LfsStore, pointer
from tests.integration.repositories.conftest import TOKEN, Sandbox, Upstream, commit, git
from tests.integration.repositories.test_branch_line import without_mirrors
from tests.integration.repositories.test_branches import Make, home, person, reaches, repository, spawner
from tests.integration.repositories.test_signed_commits import COMMITTER, new_key
from tests.integration.repositories.test_submodules import Credentials
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE

__all__ = ["home", "person", "repository", "spawner"]
LARGE = b"\0large\r\n" * 50_000
MADE, LEFT = b"\0made\n" * 100_000, b"left\n" * 100
ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
SCRIPT = f"""
test "$(sha256sum < large.bin | cut -c 1-64)" = {hashlib.sha256(LARGE).hexdigest()} || exit 9
test -z "$(git status --porcelain)" || exit 8
python3 -c 'open("made.bin", "wb").write(b"\\0made\\n" * 100_000)'
git add made.bin && git commit --quiet -m "Add a file" || exit 7
python3 -c 'open("left.bin", "wb").write(b"left\\n" * 100)'
touch empty.bin
"""


@pytest.fixture
def store(server: GitServer) -> LfsStore:
    """The LFS store of the server."""
    server.lfs = LfsStore()
    return server.lfs


@pytest.fixture
def objects(server: GitServer) -> LfsObjects:
    """The objects of a spawner that may contact this server, with its credential, and 1 MB for a checkout."""
    return LfsObjects(RepositoryHosts(frozenset({server.url}), Credentials(server)), 1_000_000)


@pytest.mark.parametrize("runtimes", [None, without_mirrors], ids=["mount", "bundle"])
async def test_files_in_lfs_are_checked_out_and_saved(
    spawner: Make,
    person: ProjectUser,
    repository: Repository,
    upstream: Upstream,
    store: LfsStore,
    runtimes: OpenRuntimes | None,
    home: Path,
    tmp_path: Path,
) -> None:
    """The agent works on the content; its committed and uncommitted files are at the server before the push.

    This also holds if the commits were signed, and their mirror was lost before they are pushed.
    """
    upstream.commit({".gitattributes": ATTRIBUTES, "large.bin": store.add(LARGE)})
    lost = runtimes is not None
    signs = {"signing_key": new_key(tmp_path, "ed25519").file, "signing_committer": COMMITTER} if lost else {}
    async with spawner(isolation="auto", runtimes=runtimes, **signs).running():
        wanted = repository.model_copy(update={"lfs": True, "push": not lost})
        task = await person.submit(["/bin/sh", "-c", SCRIPT], repository=wanted)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        if lost:
            saved = await reaches(person, task, lambda found: found.commits == 2)
            [mirror] = (home / "repositories").glob("p1/*.git")
            await asyncio.to_thread(shutil.rmtree, mirror)
            await person.bus.ask(PushBranch(branch=saved.id), person.project, timeout=PATIENCE)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None or found.problem is not None)
    assert (view.problem, view.commits) == (None, 2)
    shown = {
        name: git(upstream.path, "show", f"{view.branch}:{name}.bin") for name in ("large", "made", "left", "empty")
    }
    expected = {"large": pointer(LARGE), "made": pointer(MADE), "left": pointer(LEFT), "empty": ""}
    assert shown == {name: text.strip() for name, text in expected.items()}
    assert sorted(store.objects.values()) == sorted((LARGE, MADE, LEFT))
    assert set(store.verified) == {hashlib.sha256(MADE).hexdigest(), hashlib.sha256(LEFT).hexdigest()}
    assert not any(secret in str(event) for event in person.events for secret in (TOKEN, store.key))


def with_files(upstream: Upstream, mirror: Mirror, files: dict[str, str]) -> str:
    """Commit these files in the mirror; returns the commit."""
    made = upstream.commit(files)
    git(mirror.path, "fetch", "--quiet", str(upstream.path), made)
    return made


async def test_objects_are_fetched_once_and_checked(
    objects: LfsObjects,
    mirror: Mirror,
    remote: RemoteRepository,
    upstream: Upstream,
    store: LfsStore,
    server: GitServer,
) -> None:
    """An object must match its pointer; one that the server lacks, or too many bytes, are permanent failures."""
    made = with_files(upstream, mirror, {"a.bin": store.add(LARGE), "copy.bin": pointer(LARGE), "b": "no pointer"})
    [found] = await objects.fetch(mirror, made, remote.url)
    assert found.size == len(LARGE)
    before = len(server.requests)
    assert await objects.fetch(mirror, made, remote.url) == [found]
    assert len(server.requests) == before
    for content, stored, fault in (
        (b"missing", None, GitFault.NOT_FOUND),
        (b"another", b"altered", GitFault.UNAVAILABLE),
        (b"short", b"sh", GitFault.UNAVAILABLE),
        (b"x" * 2_000_000, b"", GitFault.TOO_LARGE),
    ):
        if stored is not None:
            store.objects[hashlib.sha256(content).hexdigest()] = stored
        bad = with_files(upstream, mirror, {"a.bin": pointer(content)})
        with pytest.raises(GitError) as refused:
            await objects.fetch(mirror, bad, remote.url)
        assert refused.value.fault is fault
    assert list(mirror.path.glob("lfs/tmp_*")) == []


async def test_object_that_no_sandbox_has_saved_is_no_push(
    objects: LfsObjects,
    mirror: Mirror,
    remote: RemoteRepository,
    upstream: Upstream,
    store: LfsStore,
    server: GitServer,
) -> None:
    """The error names the object. Without Git LFS at the server similar files are no pointers, and are pushed."""
    made = with_files(upstream, mirror, {"a.bin": pointer(b"only here")})
    with pytest.raises(GitError, match=f"1 objects.*{hashlib.sha256(b'only here').hexdigest()}") as refused:
        await objects.upload(mirror, upstream.first, made, remote.url)
    assert refused.value.fault is GitFault.REFUSED
    store.add(b"only here")
    await objects.upload(mirror, upstream.first, made, remote.url)
    server.lfs = None
    await objects.upload(mirror, upstream.first, made, remote.url)


async def test_server_can_name_permitted_hosts_only(
    objects: LfsObjects, mirror: Mirror, remote: RemoteRepository, upstream: Upstream, store: LfsStore, tmp_path: Path
) -> None:
    """An object at another host is not fetched, also by a redirect, and no file is read."""
    made = with_files(upstream, mirror, {"a.bin": store.add(LARGE)})
    for storage, problem in (("http://127.0.0.1:1", "SANDHERD_LFS_HOSTS"), (f"file://{tmp_path}", "batch API")):
        store.storage = storage
        with pytest.raises(GitError, match=problem) as refused:
            await objects.fetch(mirror, made, remote.url)
        assert TOKEN not in str(refused.value)
    store.storage = None
    for moved, problem in (
        ("http://169.254.169.254/latest", "SANDHERD_LFS_HOSTS"),
        ("", "redirects"),
        ("//[", "reached"),
    ):
        store.moved = moved
        with pytest.raises(GitError, match=problem):
            await objects.fetch(mirror, made, remote.url)


async def test_transfers_of_one_step_have_an_end(
    objects: LfsObjects, mirror: Mirror, remote: RemoteRepository, upstream: Upstream, store: LfsStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A server that sends little at a time does not hold the mirror's lock forever: the step is retried."""
    made = with_files(upstream, mirror, {"a.bin": store.add(LARGE)})
    monkeypatch.setattr(lfs, "_TRANSFER_SECONDS", 0.0)
    with pytest.raises(GitError, match="continued later") as late:
        await objects.fetch(mirror, made, remote.url)
    assert late.value.fault is GitFault.UNAVAILABLE


async def bundle_with(sandbox: Sandbox, mirror: Mirror, upstream: Upstream, *contents: bytes) -> Path:
    """The bundle of a sandbox whose branch `feature/x` has one commit, with these objects."""
    await mirror.reset_branch("feature/x", upstream.first)
    await sandbox.start(mirror, "feature/x")
    commit(sandbox.folder, {"x": "1\n"})
    lines = []
    for content in contents:
        (sandbox.folder / "object").write_bytes(content)
        blob = git(sandbox.folder, "hash-object", "-w", "object")
        lines.append((sandbox.folder / ".git" / hashlib.sha256(content).hexdigest(), blob))
    for file, blob in lines:
        git(sandbox.folder, "update-index", "--add", "--cacheinfo", f"100644,{blob},{file.name}")
    tree = git(sandbox.folder, "write-tree", "--missing-ok")
    git(sandbox.folder, "update-ref", REF, git(sandbox.folder, "commit-tree", "-m", "objects", tree))
    return sandbox.bundle("feature/x", REF, f"^{upstream.first}")


async def test_small_bundle_of_large_objects_is_refused(mirror: Mirror, upstream: Upstream, sandbox: Sandbox) -> None:
    """The objects are together larger than the maximum of a mirror, and none is stored."""
    bundle = await bundle_with(sandbox, mirror, upstream, b"0" * 600_000, b"1" * 600_000)
    assert bundle.stat().st_size < 10_000
    small = Mirror(mirror.path, GitLimits(file_bytes=1_000_000))
    take = partial(take_objects, small)
    with pytest.raises(GitError, match="more than 1000000 bytes") as refused:
        await small.import_bundle(bundle, "feature/x", expected=upstream.first, also=take)
    assert refused.value.fault is GitFault.TOO_LARGE
    assert list(mirror.path.glob("lfs/objects/*/*/*")) == []
    assert (await mirror.branches())["feature/x"] == upstream.first


async def test_pointers_of_wrong_sizes_fail_no_step_for_ever(
    objects: LfsObjects, mirror: Mirror, remote: RemoteRepository, upstream: Upstream, store: LfsStore, sandbox: Sandbox
) -> None:
    """Contradicting pointers can't be checked out; the object of one with a wrong size is uploaded as it is."""
    await restore_objects(mirror, await bundle_with(sandbox, mirror, upstream, MADE))
    wrong = pointer(MADE).replace(f"size {len(MADE)}", "size 7")
    made = with_files(upstream, mirror, {"wrong.bin": wrong, "right.bin": pointer(MADE)})
    with pytest.raises(GitError, match="different sizes") as refused:
        await objects.fetch(mirror, made, remote.url)
    assert refused.value.fault is GitFault.REFUSED
    only = with_files(upstream, mirror, {"right.bin": "no pointer"})
    for since, at in ((made, only), (upstream.first, only), (upstream.first, made)):
        await objects.upload(mirror, since, at, remote.url)
    assert list(store.objects.values()) == [MADE]
