"""Fetches the submodules of a checkout into the mirror of the repository that names them.

So the mirror's lock and maximum size apply to the submodules, and sandboxes get them in the same way.
`refs/submodules/KEY/heads/*` are the branches of a submodule's repository, `refs/submodules/KEY/commits/*` are the
commits that checkouts had. KEY is a digest of the submodule's URL.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from sandherd.contracts.repositories import MAX_SUBMODULES, Submodule, Submodules
from spawner.repositories import submodule_choice
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.mirror import FETCH, Mirror
from spawner.repositories.repository_hosts import RepositoryHosts

REFS: Final = "refs/submodules/"
"""The prefix of the refs of submodules."""
_MODULES_FILE: Final = ".gitmodules"
_LINK_MODE: Final = "160000"
"""The mode of a submodule in a tree (git-fast-import(1))."""
_FILE_MODES: Final = frozenset({"100644", "100755"})
_FIELD_PATTERN: Final = r"^submodule\..*\.(path|url)$"
_LITERAL_PATHS: Final = {"GIT_LITERAL_PATHSPECS": "1"}
_MAX_PATH: Final = 4096
"""Maximum length of a submodule's path. It is that of a path on Linux."""
_NO_MATCH: Final = 1
"""The exit status of `git config --get-regexp` without a match."""


class SubmoduleFetcher:
    """Fetches the submodules of commits in mirrors, from permitted hosts. Methods raise `GitError`."""

    def __init__(self, hosts: RepositoryHosts) -> None:
        self._hosts = hosts

    async def fetch(self, mirror: Mirror, commit: str, url: str | None, wanted: Submodules) -> Sequence[Submodule]:
        """Fetch the submodules of this commit into the mirror, and return them. Each precedes the submodules in it.

        `url` is the URL of the repository; None for a local one.
        """
        submodules: list[Submodule] = []
        level: list[tuple[Submodule | None, str, str | None]] = [(None, commit, url)] if wanted else []
        depth = 0
        while level:
            new: list[Submodule] = []
            for parent, parent_commit, parent_url in level:
                new += await self._submodules_of(mirror, parent_commit, parent, parent_url)
                submodule_choice.check_number([*submodules, *new], depth=depth + bool(new))
            for submodule in new:
                await self._ensure_fetched(mirror, submodule)
            submodules += new
            level = [(one, one.commit, one.url) for one in new if wanted == "recursive"]
            depth += 1
        return submodules

    async def check(self, mirror: Mirror, base: str, commit: str, url: str | None) -> bool:
        """Raise `GitError` if this commit names a submodule's commit that the submodule's repository does not have.

        Only submodules that have changed since `base` are checked, and none if the mirror has no submodules. Returns
        whether a submodule was fetched.
        """
        if not await mirror.run("for-each-ref", "--count=1", REFS):
            return False
        fetched = False
        changed = await _changed_links(mirror, base, commit)
        for submodule in await self._submodules_of(mirror, commit, None, url) if changed else ():
            if submodule.path in changed:
                fetched |= await self._ensure_fetched(mirror, submodule)
        return fetched

    async def _submodules_of(
        self, mirror: Mirror, commit: str, parent: Submodule | None, url: str | None
    ) -> Sequence[Submodule]:
        """The submodules that one commit names. Other arguments are as in `choose_submodules`."""
        modules = await _modules(mirror, commit)
        if len(modules) > MAX_SUBMODULES:
            raise GitError(GitFault.REFUSED, f"{_MODULES_FILE} names more than {MAX_SUBMODULES} submodules")
        links = await _links(mirror, commit, [module.get("path", "") for module in modules.values()])
        return submodule_choice.choose_submodules(modules, links, parent=parent, url=url, origins=self._hosts.origins)

    async def _ensure_fetched(self, mirror: Mirror, submodule: Submodule) -> bool:
        """Fetch the submodule and return True; return False if its commit was fetched from this URL before."""
        if await _is_fetched(mirror, submodule):
            return False

        async def fetch(remote: RemoteRepository) -> None:
            await _fetch(mirror, remote, submodule)

        try:
            await self._hosts.use(submodule.url, fetch)
        except GitError as error:
            problem = f"submodule {submodule.path!r}, {submodule.url}: {error}"
            raise GitError(error.fault, problem, of_machine=error.of_machine) from error
        return True


def commit_ref(submodule: Submodule) -> str:
    """The ref of a submodule's commit in a mirror. Bundles for sandboxes contain this ref."""
    return f"{_refs(submodule)}commits/{submodule.commit}"


async def remove_refs(mirror: Mirror) -> None:
    """Remove the refs of all submodules. A later checkout fetches the submodules again."""
    async with mirror.writing():
        commands = await mirror.run("for-each-ref", "--format=delete %(refname)", REFS)
        if commands:
            await mirror.git("update-ref", "--stdin", stdin=commands.encode())


def _refs(submodule: Submodule) -> str:
    return f"{REFS}{sha256(submodule.url.encode()).hexdigest()[:32]}/"


async def _is_fetched(mirror: Mirror, submodule: Submodule) -> bool:
    return bool(await mirror.run("for-each-ref", "--format=%(refname)", commit_ref(submodule)))


async def _fetch(mirror: Mirror, remote: RemoteRepository, submodule: Submodule) -> None:
    """Fetch all branches of the submodule. If none contains its commit, fetch that by its id, which forges permit."""
    refs, commit = _refs(submodule), submodule.commit
    async with mirror.writing():
        branches = f"+refs/heads/*:{refs}heads/*"
        await mirror.run(*FETCH, "--prune", "--end-of-options", remote.url, branches, remote=remote)
        if not await _is_on_a_branch(mirror, refs, commit):
            try:
                await mirror.run(
                    *FETCH, "--end-of-options", remote.url, f"+{commit}:{commit_ref(submodule)}", remote=remote
                )
            except GitError as error:
                if not error.permanent:
                    raise
                problem = f"the repository has no commit {commit}"
                raise GitError(GitFault.NOT_FOUND, problem) from error
        await mirror.run("update-ref", commit_ref(submodule), commit)


async def _is_on_a_branch(mirror: Mirror, refs: str, commit: str) -> bool:
    if not await mirror.has_commit(commit):
        return False
    return bool(await mirror.run("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={commit}", refs))


async def _modules(mirror: Mirror, commit: str) -> Mapping[str, Mapping[str, str]]:
    """The entries of `.gitmodules`; none if it is not a file. Its include directives are ignored."""
    blob = next(
        (blob for mode, blob, _ in await _entries(mirror, commit, [_MODULES_FILE]) if mode in _FILE_MODES),
        None,
    )
    if blob is None:
        return {}
    arguments = ("config", "--blob", blob, "--no-includes", "--null", "--get-regexp", _FIELD_PATTERN)
    _, printed = await mirror.git(*arguments, accepted=frozenset({0, _NO_MATCH}))
    return submodule_choice.parse_modules(printed.decode("utf-8", "surrogateescape"))


async def _changed_links(mirror: Mirror, base: str, commit: str) -> frozenset[str]:
    """The paths of submodules that differ between two commits."""
    printed = await mirror.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--end-of-options", base, commit)
    parts = printed.split("\0")
    changed = zip(parts[::2], parts[1::2], strict=False)
    return frozenset(path for fields, path in changed if fields.split(" ")[1:2] == [_LINK_MODE])


async def _links(mirror: Mirror, commit: str, paths: Sequence[str]) -> Mapping[str, str]:
    """The submodule commits in the tree of this commit at these paths, by path."""
    wanted = [path for path in paths if 0 < len(path) <= _MAX_PATH]
    entries = await _entries(mirror, commit, wanted) if wanted else ()
    return {path: link for mode, link, path in entries if mode == _LINK_MODE}


async def _entries(mirror: Mirror, commit: str, paths: Sequence[str]) -> Sequence[tuple[str, str, str]]:
    """The mode, the object id and the path of each tree entry at these paths."""
    arguments = ("ls-tree", "-z", "--full-tree", commit, "--", *paths)
    _, printed = await mirror.git(*arguments, environment=_LITERAL_PATHS)
    entries = []
    for line in printed.decode("utf-8", "surrogateescape").split("\0"):
        fields, _, path = line.partition("\t")
        if path:
            mode, _, oid = fields.split(" ")
            entries.append((mode, oid, path))
    return entries
