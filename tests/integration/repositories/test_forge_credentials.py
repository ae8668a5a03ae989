"""Credentials of forges for git: their sources, their replacement, and that they are nowhere else."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import FORGE_CREDENTIALS
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings, load
from sandherd.stack.broker import Broker
from spawner.forges.configuration import forges_of
from spawner.forges.credential_report import credential_problems
from spawner.forges.git_credentials import GitCredentials
from spawner.forges.locations import ForgeKind
from spawner.main import compose
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.mirror import NO_COMMIT, Mirror
from spawner.repositories.repository_hosts import RepositoryHosts
from tests.doubles.forges.forge import Forge
from tests.doubles.forges.forge_state import Repository as ForgeRepository
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.github_apps import App
from tests.doubles.forges.replies import Reply
from tests.integration.forges.sites import opened_site
from tests.integration.repositories.conftest import commit, git
from tests.integration.repositories.test_branches import WAITS, AgentsClone, person, reaches
from tests.integration.spawner.conftest import ProjectUser, home
from tests.live_files import ELSEWHERE

__all__ = ["home", "person"]


@pytest.fixture
async def github() -> AsyncIterator[GitHub]:
    async with GitHub() as running:
        yield running


@pytest.fixture
def shop(github: GitHub) -> ForgeRepository:
    return github.create_repository("team/shop")


@pytest.fixture
def app(github: GitHub) -> App:
    return github.install_app(form="stateless")


@dataclass
class Place:
    """The settings of a spawner, in files of a folder."""

    folder: Path
    values: dict[str, Any] = field(default_factory=dict)

    def of(self, forge: Forge, kind: ForgeKind = ForgeKind.GITHUB) -> "Place":
        self.values |= {"repository_hosts": [forge.url], "forges": [f"{kind}={forge.url}"]}
        return self

    def with_app(self, github: GitHub, app: App, **more: Any) -> "Place":
        key = self.folder / "app.pem"
        key.write_text(app.private_key)
        self.values |= {"github_app_id": str(app.id), "github_app_key": key, "github_app_host": github.url, **more}
        return self

    def with_token(self, forge: Forge, token: str) -> "Place":
        folder = self.folder / "tokens"
        folder.mkdir(exist_ok=True)
        (folder / forge.url.removeprefix("http://").replace(":", "_")).write_text(f"{token}\n")
        self.values["forge_tokens"] = folder
        return self

    def with_line(self, forge: Forge, user: str, token: str) -> "Place":
        file = self.folder / "git-credentials"
        file.write_text(f"{forge.url.replace('://', f'://{user}:{token}@')}\n")
        self.values["git_credentials"] = file
        return self

    @property
    def settings(self) -> Settings:
        return load(self.values, {}).settings

    @asynccontextmanager
    async def hosts(self) -> AsyncIterator[RepositoryHosts]:
        forges = forges_of(self.settings)
        try:
            yield RepositoryHosts.of(self.settings, GitCredentials(forges, self.settings.git_credentials))
        finally:
            await forges.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "secrets"
    folder.mkdir()
    return Place(folder)


@pytest.fixture
def own(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirrors" / "shop.git")


def url_of(forge: Forge) -> str:
    return f"{forge.url}/team/shop.git"


@pytest.mark.parametrize("kind", list(ForgeKind))
async def test_token_of_a_file_is_used_and_can_be_replaced(kind: ForgeKind, place: Place, own: Mirror) -> None:
    """A token works for git and for each forge's API; a new one is used without a restart."""
    async with opened_site(kind) as site:
        place.of(site.double, kind).with_token(site.double, "expired")
        async with place.hosts() as hosts:
            with pytest.raises(GitError) as refused:
                await hosts.use(url_of(site.double), own.fetch)
            assert refused.value.fault is GitFault.DENIED
            place.with_token(site.double, site.token())
            await hosts.use(url_of(site.double), own.fetch)
        assert (await own.remote_branches())["feature/sum"] == site.head()


async def test_token_of_an_app_pushes_and_is_renewed_when_it_is_revoked(
    github: GitHub, shop: ForgeRepository, app: App, place: Place, own: Mirror
) -> None:
    """Several commands of git use one token of this repository; a new one replaces it if it is refused."""
    place.of(github).with_app(github, app, github_app_installation=app.installation)
    async with place.hosts() as hosts:
        await hosts.use(url_of(github), own.fetch)
        await own.reset_branch("feature/a", (await own.remote_branches())["main"])
        push = partial(own.push, branch="feature/a", expected=NO_COMMIT)
        await hosts.use(url_of(github), push)
        issued = github.calls.of("apps/create-installation-access-token")
        assert [call.body["repositories"] for call in issued] == [["shop"]]
        assert "workflows" not in issued[0].body["permissions"]
        github.tokens.clear()
        await hosts.use(url_of(github), own.fetch)
        assert github.calls.number("apps/create-installation-access-token") == 2
    assert shop.git.head("feature/a") == shop.git.head("main")


async def test_app_serves_its_own_installation_only(
    github: GitHub, shop: ForgeRepository, app: App, place: Place, own: Mirror
) -> None:
    """Anyone can install a public App: for another installation's repository another credential is used, or none."""
    place.of(github).with_app(github, app, github_app_installation=app.installation + 1)
    async with place.hosts() as hosts:
        assert (await hosts.remote(url_of(github))).credential is None
        place.values |= {"forge_tokens": None}
    place.with_token(github, github.person_token())
    async with place.hosts() as hosts:
        await hosts.use(url_of(github), own.fetch)
    assert github.calls.number("apps/create-installation-access-token") == 0


async def test_most_specific_source_is_used(github: GitHub, shop: ForgeRepository, app: App, place: Place) -> None:
    """The order is a line of the credentials file, the App, a token's file; it is the same for the API."""
    line, stored = github.person_token("ada"), github.person_token("grace")
    place.of(github).with_token(github, stored)
    assert await used(place, github) == (stored, stored)
    place.with_app(github, app)
    of_git, of_api = await used(place, github)
    assert of_git == of_api != stored
    place.with_line(github, "ada", line)
    assert await used(place, github) == (line, line)


async def used(place: Place, github: GitHub) -> tuple[str, str]:
    """The tokens that git and the API use."""
    forges = forges_of(place.settings)
    credential = await GitCredentials(forges, place.settings.git_credentials).find(url_of(github))
    repository = forges.repository(url_of(github))
    assert repository is not None
    github.calls.clear()
    assert await forges.of(repository).default_branch() == "main"
    await forges.close()
    (call,) = github.calls.of("repos/get")
    assert credential is not None
    return credential.password, call.headers["authorization"].split()[1]


async def test_unreadable_source_is_no_anonymous_access(
    github: GitHub, shop: ForgeRepository, app: App, place: Place
) -> None:
    """With a missing key access is denied, with a folder in a token file's place it waits: neither is ignored."""
    place.of(github).with_app(github, app)
    place.values["github_app_key"].unlink()
    async with place.hosts() as hosts:
        with pytest.raises(GitError) as denied:
            await hosts.remote(url_of(github))
    assert denied.value.fault is GitFault.DENIED
    place.with_token(github, "x")
    (file,) = place.values["forge_tokens"].iterdir()
    file.unlink()
    file.mkdir()
    del place.values["github_app_id"]
    async with place.hosts() as hosts:
        with pytest.raises(GitError) as unavailable:
            await hosts.remote(url_of(github))
    assert unavailable.value.fault is GitFault.UNAVAILABLE
    place.values |= {"github_app_id": "7"}
    problem = (await credential_problems(forges_of(place.settings).hosts, place.settings))[FORGE_CREDENTIALS]
    names = (f"{file.name} of SANDHERD_FORGE_TOKENS", "SANDHERD_GITHUB_APP_KEY")
    for part in (f"{names[0]} can't be read (IsADirectoryError)", f"{names[1]} can't be read (FileNotFoundError)"):
        assert part in str(problem)
    assert str(file.parent) not in f"{problem} {unavailable.value}", "clients see these texts, and no path of the host"


# --- a task, from its fetch to its push ------------------------------------------------------------------------------


class ProcessWatcher:
    """Reads the arguments of all processes of this machine whenever git sends a request."""

    def __init__(self, forge: Forge) -> None:
        self.arguments: set[bytes] = set()
        self._admit, forge.git.admits = forge.git.admits, self._look

    def _look(self, *request: Any) -> Any:
        self.arguments |= set(_arguments())
        assert self._admit is not None
        return self._admit(*request)


def _arguments() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes()
        except OSError:
            continue


def files_with(secrets: list[bytes], *folders: Path) -> list[Path]:
    """The files below these folders with one of the secrets in their content or path."""
    assert not any((folder / ELSEWHERE).exists() for folder in folders), "a shared broker: mark this test `own_broker`"
    found = []
    for file in (one for folder in folders for one in folder.rglob("*")):
        try:
            text = file.read_bytes() if file.is_file() else b""
        except OSError:
            continue
        found += [file] if any(secret in text or secret in str(file).encode() for secret in secrets) else []
    return found


@pytest.mark.own_broker
async def test_token_of_an_app_is_nowhere(
    github: GitHub, shop: ForgeRepository, app: App, place: Place, herd: Broker, person: ProjectUser, home: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """From the fetch to the push no argument, URL, log, event, record or file has the token."""
    place.of(github).with_app(github, app)
    watcher = ProcessWatcher(github)
    values: dict[str, Any] = {
        "home": home,
        "check_interval": 0.5,
        "stop_grace": 5,
        "isolation": "none",
        "max_attempts": 1,
    }
    with capture_logs() as logs:
        async with compose(herd.settings(Principal.SPAWNER, **values | place.values)).running():
            task = await person.submit(WAITS, repository=Repository(url=url_of(github)))
            sandbox = str((await person.reaches(task, "running")).sandbox)
            view = await reaches(person, task, lambda _: True)
            clone = clone_of(shop, tmp_path / "sandbox", view.branch)
            made = commit(clone, {"shop.py": "total = 2\n"})
            await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
            await reaches(person, task, lambda found: found.pushed_commit == made)
            await person.touch(sandbox, "go")
            await person.ended(task)
    assert shop.git.head(view.branch) == made
    secrets = secrets_of(github, app)
    assert any(b"git-receive-pack" in url for url in urls(github)), "git was watched while it pushed"
    assert any(b"remote-http" in arguments for arguments in watcher.arguments), "and its processes were seen"
    assert files_with([task.encode()], herd.home), "what the broker stores can be searched"
    assert files_with(secrets, herd.home, home, clone) == []
    shown = [*watcher.arguments, *urls(github), repr(logs).encode(), repr(person.events).encode()]
    assert not any(secret in text for secret in secrets for text in shown)
    stated = [line for line in logs if line["event"] == "credential of a forge found"]
    assert [(line["host"], line["credential"]) for line in stated] == [(github.url, f"GitHub App {app.id}")]


async def test_protected_branch_is_refused_before_its_sandbox(
    github: GitHub, shop: ForgeRepository, place: Place, herd: Broker, person: ProjectUser, home: Path
) -> None:
    """The task fails with the reason, unless it pushes nothing; a forge that does not state it is no obstacle."""
    place.of(github).with_token(github, github.person_token())
    shop.protect("feature/*", approvals=1)
    values: dict[str, Any] = {"home": home, "check_interval": 0.5, "stop_grace": 5, "isolation": "none"}
    async with compose(herd.settings(Principal.SPAWNER, **values | place.values)).running():
        refused = await person.ended(await person.submit(["true"], repository=Repository(url=url_of(github))))
        assert (refused.state, refused.error_type) == ("failed", "repository")
        assert "protects feature/do-it" in str(refused.error)
        assert (refused.sandbox, shop.git.head("feature/do-it")) == (None, None)
        own = Repository(url=url_of(github), push=False)
        assert (await person.ended(await person.submit(["true"], repository=own))).state == "completed"
        github.refuse("repos/get-branch-rules", Reply(500, {"message": "down"}))
        await reaches(person, await person.submit(WAITS, repository=Repository(url=url_of(github))), lambda _: True)


def clone_of(shop: ForgeRepository, folder: Path, branch: str) -> Path:
    git(folder.parent, "clone", "--quiet", str(shop.git.path), str(folder))
    git(folder, "checkout", "--quiet", "-b", branch)
    return folder


def secrets_of(github: GitHub, app: App) -> list[bytes]:
    """All issued tokens, the authorizations of requests, and the App's key."""
    headers = {call.headers.get("authorization", "").split(" ")[-1] for call in github.calls} - {""}
    issued = [token for token, one in github.tokens.items() if one.kind == "installation"]
    assert issued
    return [secret.encode() for secret in (*issued, *headers, app.private_key.splitlines()[5])]


def urls(github: GitHub) -> list[bytes]:
    return [str(request.rel_url).encode() for request in github.git.requests] + [
        f"{call.path}?{call.query}".encode() for call in github.calls
    ]
