"""The git proxy: real git in a sandbox fetches and pushes through it; a hostile client can do nothing else."""

import asyncio
import gzip
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry
from yarl import URL

from sandherd.bus.identity import SpawnerKeys
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import BranchView
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.nats import free_port
from spawner.git_proxy.push_protocol import NO_COMMIT, pkt_line
from spawner.sandboxes.git_proxy_access import ProxyTokens
from tests.doubles.git_server import GitServer
from tests.doubles.lfs_store import LfsStore
from tests.integration.repositories.conftest import TOKEN, Upstream, git
from tests.integration.repositories.test_branches import WAITS, Make, home, person, reaches, repository, spawner
from tests.integration.repositories.test_lfs import ATTRIBUTES, store
from tests.integration.repositories.test_signed_commits import COMMITTER, new_key, verified
from tests.integration.repositories.test_submodules import link, serve
from tests.integration.spawner.conftest import ProjectUser
from tests.polling import eventually

__all__ = ["home", "person", "repository", "spawner", "store"]
NOT_SERVED = b"the git proxy serves git fetch and git push of one repository, and nothing else\n"
PUSH = "application/x-git-receive-pack-request"
_SCRIPT = """
set -u
echo 'total = 2' > shop.py; git commit -qam 'Two in total'
git push -q -o ci.skip origin HEAD > option.log 2>&1; echo "option $?" >> result
git push -q origin HEAD > push.log 2>&1; echo "push $?" >> result
git fetch -q origin > fetch.log 2>&1; echo "fetch $?" >> result
git rev-parse "refs/remotes/origin/$BRANCH_NAME" >> result
touch half; until [ -e on ]; do sleep 0.05; done
echo 'total = 3' > shop.py; git commit -qam 'Three in total'
git push -q origin HEAD > again.log 2>&1; echo "again $?" >> result
git push -q origin HEAD:main > main.log 2>&1; echo "main $?" >> result
git push -q origin HEAD:refs/heads/feature/other > beside.log 2>&1; echo "beside $?" >> result
git push -q origin ":$BRANCH_NAME" > delete.log 2>&1; echo "delete $?" >> result
mkdir -p .github/workflows; echo 'on: push' > .github/workflows/a.yml; git add .github; git commit -qm 'Add a workflow'
git push -q origin HEAD > path.log 2>&1; echo "path $?" >> result
env > environment; git config --list > settings
touch done
until [ -e go ]; do sleep 0.05; done
"""
_PUSHES = """
for number in 1 2 3; do
  echo $number > shop.py; git commit -qam $number
  git push -q origin HEAD >> log 2>&1; echo $? > result; mv result pushed-$number
  until [ -e go-$number ]; do sleep 0.05; done
done
"""
_LATER = """
echo 4 > shop.py; git commit -qam 4
git push -q origin HEAD >> log 2>&1; echo "push $?" >> results
echo 5 > shop.py; git commit -qam 5
git fetch -q origin >> log 2>&1; git rebase -q "origin/$BRANCH_NAME" >> log 2>&1
git push -q origin HEAD >> log 2>&1; echo "rebased $?" >> results
git push -q origin HEAD >> log 2>&1; echo "same $?" >> results
git commit -q --amend -m 'other' >> log 2>&1
git push -q origin HEAD >> log 2>&1; echo "amended $?" >> results
git reset -q --hard "HEAD@{1}"; mv results all
until [ -e go ]; do sleep 0.05; done
"""
_OBJECTS = """
git submodule update --init > submodule.log 2>&1; echo "submodule $?" >> results
printf made > made.bin; git add made.bin; git commit -qm 'Add a file'
git push -q origin HEAD > push.log 2>&1; echo "push $?" >> results
mv results all
until [ -e go ]; do sleep 0.05; done
"""


@dataclass
class Proxied:
    """A task whose sandbox may use the proxy, and a client with its credential."""

    view: BranchView
    sandbox: str
    url: str
    token: str
    task: str
    registry: CollectorRegistry

    def refusals(self, reason: str) -> float:
        return self.registry.get_sample_value("sandherd_git_proxy_refusals_total", {"reason": reason}) or 0.0

    def headers(self, **more: str) -> dict[str, str]:
        pair = b64encode(f"x:{self.token}".encode()).decode()
        return {"Authorization": f"Basic {pair}"} | {name.replace("_", "-"): value for name, value in more.items()}

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, URL(f"{self.url}{path}", encoded=True), data=body, headers=self.headers(**headers)
            ) as response,
        ):
            return response.status, await response.read()

    async def refused(self) -> bool:
        """Whether the sandbox may no longer fetch. The spawner learns about the end of a task from its own watch."""
        status, _ = await self.send("GET", self.at("info/refs?service=git-upload-pack"))
        return status == 403  # HTTP's own status

    def at(self, end: str) -> str:
        return f"/p1/{self.sandbox}.git/{end}"

    async def push(self, *commands: str, pack: bytes = b"", capabilities: str = "report-status") -> tuple[int, bytes]:
        first, *others = commands
        lines = [pkt_line(f"{first}\0 {capabilities}".encode()), *(pkt_line(one.encode()) for one in others)]
        body = b"".join(lines) + b"0000" + pack
        return await self.send("POST", self.at("git-receive-pack"), body, Content_Type=PUSH)


@asynccontextmanager
async def proxied(
    spawner: Make, person: ProjectUser, repository: Repository, herd: Broker, argv: list[str], **settings: Any
) -> AsyncIterator[Proxied]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    own = {"git_proxy_url": url, "git_proxy_listen": f"127.0.0.1:{port}"} | settings
    service = spawner(**own)
    async with service.running():
        task = await person.submit(argv, repository=repository.model_copy(update={"git_proxy": True}))
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        directory = herd.settings(Principal.SPAWNER).identity_dir
        assert directory is not None
        token = ProxyTokens.of(SpawnerKeys.read(directory).worker.seed).token("p1", sandbox)
        yield Proxied(view, sandbox, url, token, task, service.registry)


async def found_in(folder: Path, name: str) -> Path:
    """The file of this name, once it exists."""

    async def look() -> Path | None:
        with suppress(FileNotFoundError):  # a folder that the spawner has removed in the meantime
            return next(folder.rglob(name), None)
        return None

    found: Path = await eventually(look)
    return found


async def stored_for(herd: Broker, task: str) -> set[str]:
    """The subjects of messages that are stored under the name of a task."""
    async with herd.bus(Principal.SPAWNER) as bus:
        info = await bus.js.stream_info("ARTIFACTS", subjects_filter=f"sandherd.v1.artifact.p1.{task}.>")
    return set(info.state.subjects or {})


async def test_git_in_a_sandbox_fetches_and_pushes_its_branch_only(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, home: Path
) -> None:
    """Pushed commits are checked like saved ones, also after a mirror's loss; the forge's token is not inside."""
    async with proxied(spawner, person, repository, herd, ["/bin/sh", "-c", _SCRIPT], isolation="bubblewrap") as run:
        folder = (await found_in(home, "half")).parent
        first = upstream.head(run.view.branch)
        for mirror in (home / "repositories").glob("p1/*.git"):
            shutil.rmtree(mirror)
        (folder / "on").touch()
        await found_in(folder, "done")
        names = ("result", "environment", "settings", "push.log", "main.log", "path.log")
        work = {name: (folder / name).read_text() for name in names}
        refused = {reason: run.refusals(reason) for reason in ("credential", "ref", "path")}
        pushed = upstream.head(run.view.branch)
        await person.touch(run.sandbox, "go")
        await person.ended(run.task)
        await eventually(run.refused, "the credential ends with its sandbox")
    assert work["result"].splitlines() == [
        "option 1", "push 0", "fetch 0", first, "again 0", "main 1", "beside 1", "delete 1", "path 1",
    ], work  # fmt: skip
    assert git(upstream.path, "log", "--format=%s", pushed) == "Three in total\nTwo in total\nfirst"
    assert refused == {"credential": 0, "ref": 2, "path": 0}, "the first request of git has no credential"
    assert upstream.head("main") == upstream.first
    assert "this sandbox may push" in work["main.log"]
    assert "a user has to approve" in work["path.log"]
    assert not any(TOKEN in text or b64encode(TOKEN.encode()).decode()[:20] in text for text in work.values())
    kinds = [event["type"] for event in person.unique() if event["type"].startswith("branch.")]
    assert kinds[:2] == ["branch.created", "branch.saved"]
    assert "branch.pushed" in kinds
    assert "branch.push_refused" in kinds
    assert any(run.sandbox in str(event) for event in person.unique() if event["type"] == "branch.refused")
    assert not any(TOKEN in str(event) or run.token in str(event) for event in person.events)


async def test_signed_pushes_continue_each_other(
    spawner: Make,
    person: ProjectUser,
    repository: Repository,
    upstream: Upstream,
    herd: Broker,
    home: Path,
    tmp_path: Path,
) -> None:
    """The sandbox continues from its own commits or the signed ones; the repository has the signed ones.

    This also holds after the loss or repacking of the mirror, without a branch for the sandbox's commits. The sandbox
    of a later task, which has only the signed ones, continues as well. A rewritten history continues neither.
    """
    key = new_key(tmp_path, "ed25519")
    signing = {"signing_key": key.file, "signing_committer": COMMITTER}
    repository = repository.model_copy(update={"commit_rest": False})
    async with proxied(spawner, person, repository, herd, ["/bin/sh", "-c", _PUSHES], **signing) as run:
        for number in (1, 2, 3):
            result = await found_in(home, f"pushed-{number}")
            assert result.read_text() == "0\n", (result.parent / "log").read_text()
            (mirror,) = (home / "repositories").glob("p1/*.git")
            if number == 1:
                shutil.rmtree(mirror)
            elif number == 2:
                git(mirror, "gc", "--quiet", "--prune=now")
            if number < 3:
                (result.parent / f"go-{number}").touch()
        head = upstream.head(run.view.branch)
        assert len(await stored_for(herd, run.task)) == 4, "three diffs, and the bundle of the whole branch"
        (await found_in(home, "pushed-3")).with_name("go-3").touch()
        await person.ended(run.task)
        again = repository.model_copy(update={"branch": run.view.branch, "git_proxy": True})
        later = await person.submit(["/bin/sh", "-c", _LATER], repository=again)
        results = (await found_in(home, "all")).parent
        texts = {name: (results / name).read_text() for name in ("all", "log")}
        assert texts["all"].splitlines() == ["push 0", "rebased 0", "same 0", "amended 1"], texts
        await person.touch(str((await person.reaches(later, "running")).sandbox), "go")
        await person.ended(later)
        head = upstream.head(run.view.branch)
    assert git(upstream.path, "log", "--format=%s", head) == "5\n4\n3\n2\n1\nfirst"
    assert all(verified(upstream.path, key, f"{head}~{back}") for back in range(5))


async def test_objects_of_lfs_are_pushed_at_the_end_and_other_repositories_are_not_served(
    spawner: Make,
    person: ProjectUser,
    repository: Repository,
    upstream: Upstream,
    herd: Broker,
    home: Path,
    store: LfsStore,
) -> None:
    """A push with new objects is refused and names them; after the sandbox has saved them, it is pushed.

    Requests of Git LFS are refused, and a submodule's repository requires a credential, without a prompt.
    """
    linked = serve(upstream, "lib", {"lib.py": "lib = 1\n"}, {})
    link(upstream.clone, {".gitattributes": ATTRIBUTES}, {"lib": ("../lib.git", linked)})
    git(upstream.clone, "push", "--quiet", "origin", "HEAD:main")
    wanted = repository.model_copy(update={"lfs": True, "commit_rest": False})
    async with proxied(spawner, person, wanted, herd, ["/bin/sh", "-c", _OBJECTS]) as run:
        folder = (await found_in(home, "all")).parent
        texts = {name: (folder / name).read_text() for name in ("all", "push.log", "submodule.log")}
        assert texts["all"].splitlines() == ["submodule 1", "push 1"], texts
        assert "[remote rejected]" in texts["push.log"]
        assert sha256(b"made").hexdigest() in texts["push.log"]
        assert "could not read Username" in texts["submodule.log"]
        assert await run.send("POST", run.at("info/lfs/objects/batch"), b"{}") == (404, NOT_SERVED)
        await person.touch(run.sandbox, "go")
        await person.ended(run.task)
        view = await reaches(person, run.task, lambda found: found.pushed_commit is not None)
    assert (view.problem, view.commits) == (None, 1)
    assert list(store.objects.values()) == [b"made"]


async def test_client_with_the_credential_gets_no_further(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, server: GitServer
) -> None:
    """Other refs, repositories and endpoints, and requests other than pushes, are refused, and change nothing."""
    async with proxied(spawner, person, repository, herd, WAITS, max_repository_mb=4) as run:
        own, head, other = f"refs/heads/{run.view.branch}", run.view.commit, "1" * 40
        contacted = len(server.requests)
        for path in (
            "/p1/other/info/refs?service=git-upload-pack",
            f"/p2/{run.sandbox}/info/refs?service=git-upload-pack",
        ):
            assert (await run.send("GET", path))[0] == 401
        for path in (
            run.at("info/refs"), run.at("HEAD"), run.at("info/lfs/objects/batch"), run.at("../other/info/refs"),
            run.at("info/refs?service=git-upload-pack&service=git-receive-pack"),
            run.at("%2e%2e/info/refs?service=git-upload-pack"), "/p1/../p1/x/info/refs?service=git-upload-pack",
            f"//{server.url.partition('://')[2]}/team/shop.git/info/refs?service=git-upload-pack",
        ):  # fmt: skip
            assert (await run.send("GET", path))[0] == 404
        for command, reason in (
            (f"{upstream.first} {other} refs/heads/main", b"may push"),
            (f"{NO_COMMIT} {other} {own}x", b"may push"),
            (f"{NO_COMMIT} {other} {own}/x", b"may push"),
            (f"{NO_COMMIT} {other} refs/heads/../{own}", b"may push"),
            (f"{head} {NO_COMMIT} {own}", b"can't be deleted"),
            (f"{other} {head} {own}", b"fetch first"),
        ):
            status, report = await run.push(command)
            assert (status, report[4:13]) == (200, b"unpack ok"), (command, report)
            assert b"ng refs/" in report
            assert reason in report
        status, report = await run.push(f"{head} {other} {own}", f"{NO_COMMIT} {other} refs/heads/main")
        assert report.count(b"ng refs/") == 2
        for capabilities in ("report-status atomic", "report-status push-options", "report-status delete-refs"):
            assert (await run.push(f"{head} {other} {own}", capabilities=capabilities))[0] == 400
        status, report = await run.push(f"{head} {other} {own}", pack=b"PACK is none")
        assert b"ng refs/" in report
        bomb = gzip.compress(pkt_line(f"{head} {other} {own}\0".encode()) + b"0000" + bytes(8 * 1024 * 1024))
        for body, more, expected in (
            (b"ffff" + b"x" * 70_000, {}, 400),
            (b"0003", {}, 400),
            (pkt_line(b"push-cert\0"), {}, 400),
            (bomb, {"Content_Encoding": "gzip"}, 413),
            (b"no gzip", {"Content_Encoding": "gzip"}, 400),
            (b"0000", {"Content_Encoding": "br"}, 415),
            (b"0000", {"Content_Type": "text/plain"}, 404),
            (b"0000", {}, 200),
        ):
            sent = {"Content_Type": PUSH, **more}
            assert (await run.send("POST", run.at("git-receive-pack"), body, **sent))[0] == expected, body[:20]
        assert await smuggled(run) == [400]
        assert len(server.requests) == contacted, "the forge was asked for something"
        counted = {reason: run.refusals(reason) for reason in ("credential", "path", "ref", "request", "forge")}
        assert counted == {"credential": 2, "path": 9, "ref": 7, "request": 9, "forge": 0}
        status, _ = await run.send("GET", run.at("info/refs?service=git-upload-pack"), Git_Protocol="version=2\tx")
        assert status == 200
        assert "Git-Protocol" not in server.requests[-1].headers
        assert TOKEN not in str(server.requests[-1].rel_url)
        await person.touch(run.sandbox, "go")
        await person.ended(run.task)
    assert upstream.head("main") == upstream.first
    assert not upstream.head("feature/other")


async def smuggled(run: Proxied) -> list[int]:
    """The statuses of the responses to a request whose body could end at two places."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(run.url.rpartition(":")[2]))
    inner = f"GET {run.at('info/refs?service=git-upload-pack')} HTTP/1.1\r\nHost: x\r\n"
    inner += f"Authorization: {run.headers()['Authorization']}\r\n\r\n"
    head = f"POST {run.at('git-receive-pack')} HTTP/1.1\r\nHost: x\r\nContent-Type: {PUSH}\r\n"
    head += f"Content-Length: {5 + len(inner)}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(f"{head}0\r\n\r\n{inner}".encode())
    shown = await reader.read()
    writer.close()
    return [int(one.split()[0]) for one in shown.decode().split("HTTP/1.1 ")[1:]]
