"""A mirror: a bare repository with the branches of a remote and those of Sandherd's tasks.

`refs/remotes/origin/*` are the remote's branches as of the last fetch, `refs/heads/*` are the branches of tasks. Only
one process writes at a time (flock(2)).
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Unpack

from spawner.repositories.git import (
    DEFAULT_LIMITS,
    GitError,
    GitFault,
    GitLimits,
    GitOptions,
    RemoteRepository,
    in_repository,
    run_git,
    shown_output,
)
from spawner.repositories.mirror_paths import folder_bytes
from spawner.repositories.writer_lock import QUARANTINES, TRIALS, WriterLock

NO_COMMIT: Final = "0" * 40
"""The commit of a branch that does not exist, for compare-and-set."""
Accept = Callable[[str], Awaitable[str]]
"""Returns the commit that a branch gets for the commit of a bundle. Raises `GitError` to refuse it."""
_REMOTE: Final = "refs/remotes/origin/"
_HEADS: Final = "refs/heads/"
_INCOMING: Final = "refs/incoming/"
FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--force")
"""A fetch that changes only the refs that its arguments name."""
_BLOBLESS: Final = ("--filter=blob:none",)
_CHECKED_CONFIG: Final[Mapping[str, str]] = {"transfer.fsckObjects": "true", "fetch.fsckObjects": "true"}
"""Makes git refuse malformed objects of a sandbox, and file names that attack a checkout (git-fsck(1))."""
Take = Callable[[Path, Path], Awaitable[None]]
"""Imports other content of the bundle at the first path. It may use the quarantine at the second path."""


class Mirror:
    """The mirror in this folder, which is created when it is first fetched."""

    def __init__(self, path: Path, limits: GitLimits = DEFAULT_LIMITS, *, blobless: bool = False) -> None:
        """`blobless`: a commit is fetched without its files, each of which is fetched when it is needed."""
        self.path = path
        self.limits = limits
        self.blobless = blobless
        self.promisor: RemoteRepository | None = None
        """The remote, with its credential, from which git fetches missing objects of a partial mirror."""
        self._writer = WriterLock(path)

    # --- the remote --------------------------------------------------------------------------------------------

    async def fetch(self, remote: RemoteRepository) -> None:
        """Fetch all branches. Branches that the remote no longer has are deleted here, too. Raises `GitError`."""
        async with self.writing():
            options = ("--prune", *(_BLOBLESS if self.blobless else ()), "--end-of-options")
            await self.run(*FETCH, *options, remote.url, f"+{_HEADS}*:{_REMOTE}*", remote=remote)

    async def complete(self, remote: RemoteRepository, commits: Iterable[str]) -> None:
        """Fetch the missing files of these commits into a partial mirror. Raises `GitError`."""
        trees = [f"{commit}^{{tree}}" for commit in sorted(set(commits))]
        listed = await self.run("rev-list", "--objects", "--no-object-names", "--missing=print", *trees)
        missing = "".join(f"{line[1:]}\n" for line in listed.split() if line.startswith("?")).encode()
        if missing:
            config = {"fetch.negotiationAlgorithm": "noop"}
            async with self.writing():
                await self.git(*FETCH, *_BLOBLESS, "--stdin", remote.url, remote=remote, config=config, stdin=missing)

    def is_partial(self) -> bool:
        """Whether files may be missing in the mirror. It blocks."""
        return self.blobless or any((self.path / "objects" / "pack").glob("*.promisor"))

    async def fetch_ref(self, remote: RemoteRepository, ref: str) -> None:
        """Fetch the commits of a ref that is not a branch. They are removed with the garbage. Raises `GitError`."""
        async with self.writing():
            await self.run(*FETCH, "--end-of-options", remote.url, ref, remote=remote)

    async def default_branch(self, remote: RemoteRepository) -> str:
        """The branch that the remote's HEAD refers to. Raises `GitError`, also for an empty repository."""
        printed = await self.run("ls-remote", "--symref", "--end-of-options", remote.url, "HEAD", remote=remote)
        for line in printed.split("\n"):
            target, _, name = line.partition("\t")
            if name == "HEAD" and target.startswith(f"ref: {_HEADS}"):
                return target.removeprefix(f"ref: {_HEADS}")
        raise GitError(GitFault.NOT_FOUND, "the repository has no default branch; name a base branch")

    async def push(self, remote: RemoteRepository, branch: str, *, expected: str, commit: str | None = None) -> None:
        """Push the branch if the remote's branch is at `expected`, or at the pushed commit already. Raises `GitError`.

        `expected` is `NO_COMMIT` if the remote has no such branch. `commit`: push this in place of the mirror's branch.
        """
        name = f"{_HEADS}{branch}"
        lease = f"--force-with-lease={name}:{'' if expected == NO_COMMIT else expected}"
        options = ("push", "--porcelain", "--no-verify", "--no-follow-tags", lease)
        status, printed = await run_git(
            *in_repository(self.path), *options, "--end-of-options", remote.url, f"{commit or name}:{name}",
            credential=remote.credential, limits=self.limits, accepted=frozenset({0, 1}), over_network=True,
        )  # fmt: skip
        if status:
            raise _refused_push(shown_output(printed, remote.credential))

    async def delete_remote_branch(self, remote: RemoteRepository, branch: str, *, expected: str) -> None:
        """Delete the remote's branch if it is at `expected`; no error if there is none. Raises `GitError`.

        If the mirror was removed, an empty one is created, because its content is not needed for this.
        """
        if not (self.path / "HEAD").exists():
            async with self.writing():
                pass
        name = f"{_HEADS}{branch}"
        listed = await self.run("ls-remote", "--end-of-options", remote.url, name, remote=remote)
        if not listed:
            return
        options = ("push", "--porcelain", "--no-verify", f"--force-with-lease={name}:{expected}")
        status, printed = await run_git(
            *in_repository(self.path), *options, "--end-of-options", remote.url, f":{name}",
            credential=remote.credential, limits=self.limits, accepted=frozenset({0, 1}), over_network=True,
        )  # fmt: skip
        if status:
            raise _refused_push(shown_output(printed, remote.credential))

    # --- branches ----------------------------------------------------------------------------------------------

    async def remote_branches(self) -> Mapping[str, str]:
        """The commits of the remote's branches, by name, as of the last fetch."""
        return await self._refs(_REMOTE)

    async def branches(self) -> Mapping[str, str]:
        """The commits of the branches, by name."""
        return await self._refs(_HEADS)

    async def reset_branch(self, branch: str, commit: str) -> None:
        """Set the branch to this commit, whatever its commit was. Raises `GitError`, also if the commit is missing."""
        async with self.writing():
            await self.run("update-ref", "--end-of-options", f"{_HEADS}{branch}", commit)

    async def delete_branch(self, branch: str, *, expected: str) -> None:
        """Delete the branch if it is at `expected`; no error if there is none. Raises `GitError`."""
        async with self.writing():
            if branch in await self.branches():
                await self.run("update-ref", "-d", f"{_HEADS}{branch}", expected)

    # --- bundles -----------------------------------------------------------------------------------------------

    async def write_bundle_of(self, branch: str, commit: str, file: Path, *, since: str) -> None:
        """Set the branch to this commit, and write its commits after `since` as a bundle. Raises `GitError`."""
        async with self.writing():  # set it again, because another step may have reset the branch
            await self.run("update-ref", "--end-of-options", f"{_HEADS}{branch}", commit)
            await self.write_bundle(branch, file, since=since)

    async def write_bundle(
        self, branch: str, file: Path, *, since: str | None = None, base: str | None = None, others: Sequence[str] = ()
    ) -> None:
        """Write the branch as a bundle (git-bundle(1)), with its history or the commits after `since`.

        `base`: the bundle also gets the remote's branch of this name as of the last fetch, if it exists, because an
        agent may merge it. `others`: the full names of other refs for the bundle.
        """
        excluded = (f"^{since}",) if since else ()
        bases = [f"{_REMOTE}{base}"] if base is not None and base in await self.remote_branches() else []
        await self.run("bundle", "create", "--quiet", str(file), f"{_HEADS}{branch}", *bases, *others, *excluded)

    async def import_base(self, bundle: Path, base: str) -> None:
        """Import the base branch of a local repository from a client's bundle. Raises `GitError`."""
        async with self.writing(), self.quarantine() as quarantine:
            await self._unbundle(bundle, base, quarantine)
            refs = f"+{_HEADS}{base}:{_REMOTE}{base}"
            await self.run(*FETCH, "--end-of-options", str(quarantine), refs, config=_CHECKED_CONFIG)

    async def import_bundle(
        self, bundle: Path, branch: str, *, expected: str, unsigned: str | None = None, accept: Accept | None = None,
        also: Take | None = None,
    ) -> str:  # fmt: skip
        """Continue the branch, which is at `expected`, with the commits of a sandbox's bundle. Returns its new commit.

        `also` imports other content of the bundle. `accept` gets the bundle's commit and returns the commit for the
        branch, or raises `GitError` to refuse it.

        Raises `GitError` for a malformed or incomplete bundle, and for hostile objects. The commit has to contain
        `expected`, or the commit that `expected` was signed from (`unsigned`), because a branch is only continued. The
        fault is `UNAVAILABLE` if the branch has moved: a replica that lost its lease may have added the commits.
        """
        incoming = f"{_INCOMING}{branch}"
        async with self.writing():
            try:
                async with self.quarantine() as quarantine:
                    with _bundle_faults(bundle):
                        await self._unbundle(bundle, branch, quarantine)
                        if also is not None:
                            await also(bundle, quarantine)
                        refs = f"+{_HEADS}{branch}:{incoming}"
                        await self.run(*FETCH, "--end-of-options", str(quarantine), refs, config=_CHECKED_CONFIG)
                printed = await self.run("rev-parse", "--verify", "--end-of-options", f"{incoming}^{{commit}}")
                commit = printed.strip()
                if expected != NO_COMMIT and not await self._continues(commit, expected, unsigned):
                    text = f"the bundle's commit does not descend from {expected[:12]}, the commit of {branch}"
                    raise GitError(GitFault.CONFLICT, text)
                commit = await accept(commit) if accept else commit
                await self._move(branch, commit, expected)
            finally:
                await self.run("update-ref", "-d", incoming)
        return commit

    async def _continues(self, commit: str, expected: str, unsigned: str | None) -> bool:
        ancestors = [expected, *([unsigned] if unsigned is not None and await self.has_commit(unsigned) else [])]
        try:
            return any([await self.contains(commit, one) for one in ancestors])
        except GitError as error:
            raise await self.transient_if_removed(error, commit) from error

    async def transient_if_removed(self, error: GitError, commit: str) -> GitError:
        """A transient error if a commit was removed meanwhile, as by the git of a killed writer; otherwise `error`."""
        if not error.permanent or await self.has_commit(commit):
            return error
        return GitError(GitFault.UNAVAILABLE, f"commit {commit[:12]} was removed from the mirror meanwhile: {error}")

    @asynccontextmanager
    async def quarantine(self) -> AsyncIterator[Path]:
        """A temporary repository that also reads the mirror's objects. The caller holds the mirror's lock."""
        with tempfile.TemporaryDirectory(prefix=QUARANTINES, dir=self.path) as folder:
            await run_git("init", "--quiet", "--bare", "--template=", "--end-of-options", folder)
            (Path(folder) / "objects" / "info" / "alternates").write_text(f"{self.path / 'objects'}\n")
            yield Path(folder)

    async def _unbundle(self, bundle: Path, branch: str, quarantine: Path) -> None:
        """Fetch the bundle into the quarantine.

        Git before 2.46 does not check the objects of a bundle. So callers fetch them from the quarantine, with checks.
        Refused objects are deleted with the quarantine.
        """
        arguments = (*FETCH, "--end-of-options", str(bundle), f"+{_HEADS}{branch}:{_HEADS}{branch}")
        await run_git(*in_repository(quarantine), *arguments, limits=self.limits)

    async def has_commit(self, commit: str) -> bool:
        """Whether the mirror has this commit. Raises `GitError`."""
        arguments = ("cat-file", "-e", f"{commit}^{{commit}}")
        status, _ = await self.git(*arguments, accepted=frozenset({0, 1, 128}))
        return status == 0

    async def contains(self, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is this commit, or an ancestor of it. Raises `GitError`."""
        arguments = ("merge-base", "--is-ancestor", "--end-of-options", ancestor, commit)
        status, _ = await self.git(*arguments, accepted=frozenset({0, 1}))
        return status == 0

    # --- trial merges ------------------------------------------------------------------------------------------

    async def conflicts(self, head: str, base: str) -> list[str]:
        """The paths with conflicts if these commits are merged; nothing is stored. Raises `GitError`."""
        async with self._trial() as environment:
            return sorted(set((await self._merged_tree(head, base, environment))[1]))

    async def merge_changes(self, head: str, base: str) -> list[str]:
        """The paths that a merge of `head` into `base` changes or has conflicts in; nothing is stored.

        Raises `GitError`.
        """
        async with self._trial() as environment:
            tree, conflicts = await self._merged_tree(head, base, environment)
            arguments = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", base, tree)
            _, printed = await self.git(*arguments, environment=environment)
        return sorted({*_paths(printed), *conflicts})

    async def merge_bases(self, head: str, base: str) -> list[str]:
        """The best common ancestors of two commits, usually one. Raises `GitError`."""
        arguments = ("merge-base", "--all", "--end-of-options", head, base)
        _, printed = await self.git(*arguments, accepted=frozenset({0, 1}))
        return printed.decode().split()

    @asynccontextmanager
    async def _trial(self) -> AsyncIterator[dict[str, str]]:
        """An environment that makes git store new objects in a folder, which is removed afterwards."""
        async with self.writing():
            with tempfile.TemporaryDirectory(prefix=TRIALS, dir=self.path) as objects:
                yield {"GIT_OBJECT_DIRECTORY": objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.path / "objects")}

    async def _merged_tree(self, head: str, base: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
        """The tree of a merge, and the paths with conflicts."""
        arguments = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", "--end-of-options", head, base)
        status, printed = await self.git(*arguments, environment=environment, accepted=frozenset({0, 1}))
        tree, *paths = _paths(printed)
        return tree, paths if status else []

    # --- the repository ----------------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """The size of the mirror's files in bytes. It blocks."""
        return folder_bytes(self.path)

    def used_at(self) -> float:
        """When a branch of the mirror was needed last, in seconds since the epoch; 0 if never."""
        return self._writer.touched_at()

    def mark_used(self) -> None:
        """Store that a branch of the mirror is needed now."""
        self._writer.touch()

    async def remove(self) -> None:
        """Delete the mirror, if it exists. Commits that were not pushed are then only in stored bundles."""
        async with self._writer.hold():
            await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
            self._writer.remove()

    async def _refs(self, prefix: str) -> dict[str, str]:
        if not self.path.exists():
            return {}
        printed = await self.run("for-each-ref", "--format=%(objectname) %(refname)", prefix)
        pairs = (line.split(" ", 1) for line in printed.split("\n") if line)
        return {name.removeprefix(prefix): commit for commit, name in pairs}

    async def _move(self, branch: str, commit: str, expected: str) -> None:
        try:
            await self.run("update-ref", f"{_HEADS}{branch}", commit, expected)
        except GitError as error:
            raise GitError(GitFault.UNAVAILABLE, f"{branch} is not at {expected[:12]}: {error}") from error

    async def run(
        self, *arguments: str, remote: RemoteRepository | None = None, config: Mapping[str, str] | None = None
    ) -> str:
        """Run git on this repository and return its output. Raises `GitError`."""
        _, printed = await self.git(*arguments, remote=remote, config=config)
        return printed.decode("utf-8", "surrogateescape")

    async def git(
        self, *arguments: str, remote: RemoteRepository | None = None, **options: Unpack[GitOptions]
    ) -> tuple[int, bytes]:
        """Run git on this repository, as `run_git` does. Raises `GitError`."""
        used = remote or self.promisor
        options.setdefault("limits", self.limits)
        try:
            return await run_git(
                *in_repository(self.path), *arguments,
                credential=used.credential if used else None, over_network=used is not None, **options,
            )  # fmt: skip
        except GitError as error:
            if remote is not None or self.promisor is None or "promisor remote" not in str(error):
                raise
            message = f"the mirror is partial (SANDHERD_MIRROR_FILTER), and its repository has the rest: {error}"
            raise GitError(error.fault, message, of_machine=error.of_machine) from error

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold the writer's lock. The mirror is created if it does not exist, and removed if its first write fails."""
        async with self._writer.hold():
            new = not (self.path / "HEAD").exists()
            if new:
                await run_git(
                    "init", "--quiet", "--bare", "--shared=world", "--template=", "--end-of-options", str(self.path)
                )
            try:
                yield
                await asyncio.to_thread(_share_promisors, self.path)
            except GitError:
                if new:
                    await asyncio.to_thread(shutil.rmtree, self.path)
                raise


def _share_promisors(mirror: Path) -> None:
    """Let sandboxes read the `.promisor` files of partial packs, to which git does not apply `--shared`."""
    for mark in (mirror / "objects" / "pack").glob("*.promisor"):
        mark.chmod(0o444)


def _paths(printed: bytes) -> list[str]:
    return [path for path in printed.decode("utf-8", "surrogateescape").split("\0") if path]


@contextmanager
def _bundle_faults(bundle: Path) -> Iterator[None]:
    """Make transient errors in this block permanent unless this machine is the cause: a retry reads the same bundle."""
    try:
        yield
    except GitError as error:
        if error.permanent or error.of_machine:
            raise
        raise GitError(GitFault.REFUSED, f"the bundle of {bundle.stat().st_size} bytes is damaged: {error}") from error


def _refused_push(printed: str) -> GitError:
    """The error, from a line of `--porcelain`: `!`, the refs, and a summary with the reason (git-push(1))."""
    line = next((line for line in printed.split("\n") if line.startswith("!")), "")
    reason = line.rsplit("\t", 1)[-1]
    stale = any(word in reason for word in ("stale info", "fetch first", "non-fast-forward", "already exists"))
    return GitError(GitFault.CONFLICT if stale else GitFault.REFUSED, f"push: {reason[:500] or 'no reason printed'}")
