"""The doubles of all forges, with the same interface for what tests set up."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spawner.forges.locations import ForgeHost, ForgeKind, ForgeRepository
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documented import DocumentedForge
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.gitea import Gitea
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.gitlab import GitLab


class GithubServer(GitHub):
    """GitHub whose GraphQL is beside `/api/v3`, as on GitHub Enterprise Server; the double has it below its prefix."""

    prefix = "/api"


class Site(ABC):
    """A forge with the repository `team/shop`, which has a commit on `main` and another on `feature/sum`."""

    kind: ForgeKind
    create: str
    """The ids of the operations in the forge's document, for faults."""
    listing: str
    merge: str
    default: str
    double: DocumentedForge
    shop: Repository

    def prepare(self, shop: Repository) -> None:
        self.shop = shop
        shop.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")

    @property
    def repository(self) -> ForgeRepository:
        return ForgeRepository(ForgeHost(self.kind, self.double.url, self.double.api_url), "team", "shop")

    def head(self, branch: str = "feature/sum") -> str:
        found = self.shop.git.head(branch)
        assert found is not None
        return found

    def writes(self) -> int:
        return sum(call.is_write for call in self.double.calls)

    @abstractmethod
    def token(self) -> str: ...

    @abstractmethod
    def open_issue(self) -> int: ...

    @abstractmethod
    def protect(self, pattern: str) -> None: ...

    @abstractmethod
    def require(self) -> None:
        """Require one check and one approval for merges into `main`."""

    @abstractmethod
    def report(self, passed: bool | None) -> None:
        """Report the check of the head commit; it runs if None is given."""

    @abstractmethod
    def approve(self) -> None: ...


class GithubSite(Site):
    kind = ForgeKind.GITHUB
    create, listing, merge, default = "pulls/create", "pulls/list", "pulls/merge", "repos/get"

    def __init__(self, double: GitHub) -> None:
        self.double = self.github = double
        self.prepare(double.create_repository("team/shop"))

    def token(self) -> str:
        return self.github.person_token("ada")

    def open_issue(self) -> int:
        return self.github.open_issue(self.shop, "Sum is missing").number

    def protect(self, pattern: str) -> None:
        self.shop.protect(pattern, approvals=1)

    def require(self) -> None:
        self.shop.protect("main", checks=["pipeline"], approvals=1)

    def report(self, passed: bool | None) -> None:
        conclusion = {True: "success", False: "failure", None: None}[passed]
        self.shop.report_check(self.head(), "pipeline", conclusion, self.double.clock.now())

    def approve(self) -> None:
        self.github.review(self.shop, 1)


class GiteaSite(Site):
    kind = ForgeKind.GITEA
    create, listing = "repo_create_pull_request", "repo_list_pull_requests"
    merge, default = "repo_merge_pull_request", "repo_get"

    def __init__(self, double: Gitea) -> None:
        self.double = self.gitea = double
        self.prepare(double.create_repository("team/shop"))

    def token(self) -> str:
        return self.gitea.token("ada")

    def open_issue(self) -> int:
        return self.gitea.open_issue(self.shop, "Sum is missing").number

    def protect(self, pattern: str) -> None:
        self.gitea.protect(self.shop, pattern, approvals=1)

    def require(self) -> None:
        self.gitea.protect(self.shop, "main", checks=["pipeline"], approvals=1)

    def report(self, passed: bool | None) -> None:
        state = {True: "success", False: "failure", None: "pending"}[passed]
        self.shop.report_status(self.head(), "pipeline", state, self.double.clock.now())

    def approve(self) -> None:
        self.gitea.review(self.shop, 1)


class GitlabSite(Site):
    kind = ForgeKind.GITLAB
    create, listing, merge, default = "create_merge_request", "merge_requests", "merge", "project"

    def __init__(self, double: GitLab) -> None:
        self.double = self.gitlab = double
        self.prepare(double.create_project("team/shop"))

    def token(self) -> str:
        return self.gitlab.token("ada")

    def open_issue(self) -> int:
        return self.gitlab.open_issue(self.shop, "Sum is missing").number

    def protect(self, pattern: str) -> None:
        self.gitlab.protect(self.shop, pattern)

    def require(self) -> None:
        settings = self.gitlab.settings["team/shop"]
        settings.pipeline, settings.approvals = True, 1

    def report(self, passed: bool | None) -> None:
        self.gitlab.report_pipeline(self.shop, self.head(), {True: "success", False: "failed", None: None}[passed])

    def approve(self) -> None:
        self.gitlab.approve(self.shop, 1)


_SITES: dict[ForgeKind, tuple[Any, Any]] = {
    ForgeKind.GITHUB: (GithubServer, GithubSite),
    ForgeKind.GITLAB: (GitLab, GitlabSite),
    ForgeKind.GITEA: (Gitea, GiteaSite),
}


@asynccontextmanager
async def opened_site(kind: ForgeKind) -> AsyncIterator[Site]:
    """A forge; it fails if a request was not as documented, a merge unguarded or blind, or a write too early."""
    double, site = _SITES[kind]
    async with double(Clock()) as running:
        yield site(running)
    assert running.unguarded_merges == []
    assert getattr(running, "blind_merges", []) == []
    assert running.calls.hasty_writes() == []
