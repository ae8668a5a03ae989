"""The control plane fetches submodules from permitted hosts, and sandboxes check them out without a network."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from spawner.repositories.git import GitCredential, GitError, GitFault
from spawner.repositories.mirror import Mirror
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.repositories.submodules import SubmoduleFetcher, commit_ref, remove_refs
from tests.doubles.git_server import USER, GitServer
from tests.integration.repositories.conftest import TOKEN, Upstream, commit, git
from tests.integration.repositories.test_branch_line import without_mirrors
from tests.integration.repositories.test_branches import Make, home, person, reaches, repository, spawner
from tests.integration.repositories.test_signed_commits import COMMITTER, new_key, verified
from tests.integration.spawner.conftest import ProjectUser

__all__ = ["home", "person", "repository", "spawner"]
LOOKS = """
cat lib/lib.py lib/deep/core.py || exit 9
test -z "$(git status --porcelain --ignore-submodules=none)" || exit 8
test "$(git -C lib/deep log --format=%s)" = core || exit 7
git submodule status --recursive | grep -c '^ ' | grep -qx 2 || exit 6
git gc --quiet --prune=now && git -C lib fsck --strict || exit 5
echo "total = 2" > shop.py
echo "more" >> lib/lib.py
"""


class Credentials:
    """The credential of one server."""

    def __init__(self, server: GitServer) -> None:
        self._own = GitCredential(server.url, USER, TOKEN)

    async def find(self, url: str) -> GitCredential | None:
        return self._own if url.startswith(self._own.origin) else None

    async def renew(self, url: str, refused: GitCredential) -> GitCredential | None:  # there is no other
        return None


@pytest.fixture
def fetcher(server: GitServer) -> SubmoduleFetcher:
    return SubmoduleFetcher(RepositoryHosts(frozenset({server.url}), Credentials(server)))


def serve(upstream: Upstream, name: str, files: Mapping[str, str], links: Mapping[str, tuple[str, str]]) -> str:
    """Serve another repository with these files and submodules; returns its commit."""
    folder = upstream.path.parents[2] / name
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    made = link(folder, files, links, message=name)
    git(folder, "clone", "--quiet", "--bare", str(folder), str(upstream.path.parent / f"{name}.git"))
    return made


def link(folder: Path, files: Mapping[str, str], links: Mapping[str, tuple[str, str]], message: str = "link") -> str:
    """Commit files and submodules, each a URL and a commit by its path, without cloning them; returns the commit."""
    modules = "".join(f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n' for path, (url, _) in links.items())
    commit(folder, {**files, ".gitmodules": modules}, message)
    for path, (_, linked) in links.items():
        (folder / path).mkdir(parents=True, exist_ok=True)
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{linked},{path}")
    git(folder, "commit", "--quiet", "--amend", "--no-edit")
    return git(folder, "rev-parse", "HEAD")


def nested(upstream: Upstream) -> tuple[str, str]:
    """Create a submodule `lib` with a submodule `deep`; returns the commits of both."""
    core = serve(upstream, "core", {"core.py": "core = 1\n"}, {})
    lib = serve(upstream, "lib", {"lib.py": "lib = 1\n"}, {"deep": ("../core.git", core)})
    link(upstream.clone, {}, {"lib": ("./../lib.git", lib)})
    git(upstream.clone, "push", "--quiet", "origin", "HEAD:main")
    return lib, core


@pytest.mark.parametrize("runtimes", [None, without_mirrors], ids=["mount", "bundle"])
async def test_submodules_are_checked_out(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, tmp_path: Path, runtimes: None
) -> None:
    """Nested ones, too; git works in them without a network, and changes in them are not saved.

    The commits are signed, but none of a submodule.
    """
    lib, _ = nested(upstream)
    key = new_key(tmp_path, "ed25519")
    signs = {"signing_key": key.file, "signing_committer": COMMITTER}
    async with spawner(isolation="auto", runtimes=runtimes, **signs).running():
        wanted = repository.model_copy(update={"submodules": "recursive"})
        task = await person.submit(["/bin/sh", "-c", LOOKS], repository=wanted)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None)
    assert git(upstream.path, "show", f"{view.branch}:shop.py") == "total = 2"
    assert git(upstream.path, "rev-parse", f"{view.branch}:lib") == lib
    assert verified(upstream.path, key, view.branch)
    assert git(upstream.path, "diff", "--name-only", "main", view.branch) == "shop.py"
    [saved] = [event for event in person.unique() if event["type"] == "agent.branch_saved"]
    assert "changes inside of submodules (1), the first of them 'lib'" in saved["data"]["left_out"]


async def test_submodules_are_fetched_once(
    fetcher: SubmoduleFetcher, mirror: Mirror, remote: object, upstream: Upstream, server: GitServer
) -> None:
    """Only the wanted levels are fetched, into the repository's mirror; removed refs are fetched again."""
    lib, core = nested(upstream)
    url = f"{server.url}/team/shop.git"
    await mirror.fetch(remote)  # type: ignore[arg-type]
    head = (await mirror.remote_branches())["main"]
    assert await fetcher.fetch(mirror, head, url, wanted=False) == []
    [direct] = await fetcher.fetch(mirror, head, url, wanted=True)
    assert (direct.path, direct.url, direct.commit) == ("lib", f"{server.url}/team/lib.git", lib)
    _, deep = found = await fetcher.fetch(mirror, head, url, wanted="recursive")
    assert (deep.path, deep.commit) == ("lib/deep", core)
    before = len(server.requests)
    assert await fetcher.fetch(mirror, head, url, wanted="recursive") == found
    assert len(server.requests) == before
    await remove_refs(mirror)
    assert await mirror.run("for-each-ref", commit_ref(deep)) == ""
    await fetcher.fetch(mirror, head, url, wanted="recursive")
    assert await mirror.has_commit(core)


HOSTILE = (
    ("ext::sh -c touch% /tmp/owned", "not an http or https URL"),
    ("/etc", "not an http or https URL"),
    ("file:///etc", "not an http or https URL"),
    ("-u./payload", "not an http or https URL"),
    ("https://evil.example.org/x/y", "host is not permitted"),
    ("git@evil.example.org:x/y", "host is not permitted"),
    ("../../../../x", "leads out of the host"),
    ("../missing.git", "not found"),
    ("../lib.git", "has no commit"),
)


async def test_hostile_submodules_are_refused(
    fetcher: SubmoduleFetcher, mirror: Mirror, upstream: Upstream, server: GitServer
) -> None:
    """The error names the submodule; no other host is contacted, and nothing is executed."""
    serve(upstream, "lib", {"lib.py": "lib = 1\n"}, {})
    for url, problem in HOSTILE:
        head = link(upstream.clone, {}, {"lib": (url, "1" * 40)})
        git(mirror.path, "fetch", "--quiet", str(upstream.clone), head)
        with pytest.raises(GitError, match=f"(?s)submodule 'lib'.*{problem}") as refused:
            await fetcher.fetch(mirror, head, f"{server.url}/team/shop.git", wanted=True)
        assert refused.value.fault in {GitFault.REFUSED, GitFault.NOT_FOUND}
        assert refused.value.permanent


async def test_path_that_is_longer_than_an_argument_is_none(
    fetcher: SubmoduleFetcher, mirror: Mirror, upstream: Upstream, server: GitServer
) -> None:
    """No file system can have the path, so that it is no submodule's folder; the task does not wait forever."""
    text = f'[submodule "long"]\n\tpath = {"x" * 200_000}\n\turl = ../lib.git\n'
    head = commit(upstream.clone, {".gitmodules": text})
    git(mirror.path, "fetch", "--quiet", str(upstream.clone), head)
    assert await fetcher.fetch(mirror, head, f"{server.url}/team/shop.git", wanted=True) == []


async def test_push_with_a_commit_of_the_sandbox_alone_is_refused(
    fetcher: SubmoduleFetcher, mirror: Mirror, upstream: Upstream, server: GitServer
) -> None:
    """The agent has committed in a submodule and in the work tree; the submodule's repository lacks the new commit."""
    url = f"{server.url}/team/shop.git"
    lib = serve(upstream, "lib", {"lib.py": "lib = 1\n"}, {})
    base = link(upstream.clone, {}, {"lib": ("../lib.git", lib)})
    other = link(upstream.clone, {"x": "1"}, {"lib": ("../lib.git", "1" * 40)})
    git(mirror.path, "fetch", "--quiet", str(upstream.clone), other)
    await fetcher.check(mirror, base, other, url)
    await fetcher.fetch(mirror, base, url, wanted=True)
    assert not await fetcher.check(mirror, upstream.first, base, url), "it is fetched already"
    with pytest.raises(GitError, match=f"submodule 'lib'.*no commit {'1' * 40}") as refused:
        await fetcher.check(mirror, base, other, url)
    assert refused.value.fault is GitFault.NOT_FOUND
