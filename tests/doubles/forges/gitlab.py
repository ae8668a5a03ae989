"""GitLab: its REST API, checked against the types of a client, and git over HTTP of the same projects.

The API is at `api_url` (`/api/v4`), and git at `url/GROUP/NAME.git`. A project is named by its id or its encoded path.
"""

import json
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Final

from aiohttp import web

from tests.doubles.forges import gitlab_merge_requests, gitlab_projects
from tests.doubles.forges.bare_repository import BareRepository
from tests.doubles.forges.calls import Call
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documented import DocumentedForge
from tests.doubles.forges.forge_state import Account, BranchRules, Issue, Repository, Review, Token
from tests.doubles.forges.gitlab_document import gitlab_document
from tests.doubles.forges.gitlab_exchange import Exchange, Route, refused
from tests.doubles.forges.gitlab_rules import ProjectSettings, merge_now
from tests.doubles.forges.gitlab_shapes import GitLabShapes
from tests.doubles.forges.openapi import Document, Mismatch
from tests.doubles.forges.pull_states import refresh
from tests.doubles.forges.replies import ABSENT, ApiError, Reply
from tests.doubles.git_server import RefusedError

_ROUTES: Final[dict[str, Route]] = {**gitlab_projects.ROUTES, **gitlab_merge_requests.ROUTES}
_EXPIRED: Final = "Token is expired. You can either do re-authorization or token refresh."
_SCOPE: Final = "The request requires higher privileges than provided by the access token."
_PUSH: Final = "GitLab: You are not allowed to push code to protected branches on this project."


@cache
def document() -> Document:
    """The description of the operations that are served here."""
    return Document(gitlab_document())


class GitLab(DocumentedForge):
    """GitLab with the group `team`; `async with` it. Projects are private."""

    prefix: ClassVar[str] = "/api/v4"

    def __init__(self, clock: Clock | None = None, *, checking: int = 1) -> None:
        super().__init__(clock)
        self.checking = checking
        """The number of gets and merges of a changed merge request before its status is known."""
        self.projects: dict[str, Repository] = {}
        self.settings: dict[str, ProjectSettings] = {}
        """Settings by the full name of a project."""
        self.accounts = {"team": Account("team", "Organization")}
        self.tokens: dict[str, Token] = {}
        self.unguarded_merges: list[Call] = []
        """Merges without `sha`."""

    def document_for(self, call: Call) -> Document:
        """The document of GitLab."""
        return document()

    @property
    def shapes(self) -> GitLabShapes:
        """The JSON of responses, with URLs of this server."""
        return GitLabShapes(self.url)

    # --- what a test sets up -------------------------------------------------------------------------------------

    def create_project(self, full_name: str = "team/shop", files: Mapping[str, str] | None = None) -> Repository:
        """Create a project with one commit on `main`."""
        git = BareRepository.create(self.folder / "served" / f"{full_name}.git")
        git.commit("main", files or {"README.md": "shop\n"}, "first")
        owner = self.account(full_name.split("/", maxsplit=1)[0])
        self.projects[full_name] = Repository(full_name, owner, git, self.clock.now())
        self.settings[full_name] = ProjectSettings()
        return self.projects[full_name]

    def protect(self, project: Repository, pattern: str) -> BranchRules:
        """Protect branches: no one can push to them."""
        made = project.protect(pattern)
        project.git.protect({f"refs/heads/{one.pattern}": _PUSH for one in project.rules})
        return made

    def account(self, login: str) -> Account:
        """Create a user or a group."""
        return self.accounts.setdefault(login, Account(login))

    def token(self, login: str = "ada", scopes: tuple[str, ...] = ("api",), *, expires: datetime | None = None) -> str:
        """Create a token with scopes: `api`, `read_api`, `read_repository`, `write_repository`."""
        value = f"glpat-{secrets.token_hex(10)}"
        granted = dict.fromkeys(scopes, "write")
        self.tokens[value] = Token(value, self.account(login), "classic", expires, None, granted, login)
        return value

    def report_pipeline(self, project: Repository, commit: str, status: str | None) -> None:
        """Report a pipeline: running (`None`), `success`, `failed`, … Merge requests that wait for it are merged."""
        refresh(project, self.checking)
        project.report_check(commit, "pipeline", status, self.clock.now())
        for pull in project.pulls.values():
            if status == "success" and pull.queued and pull.head_sha == commit and pull.merged_by:
                merge_now(self, project, pull, pull.merged_by)

    def approve(self, project: Repository, iid: int, login: str = "grace") -> None:
        """Approve the latest commit."""
        refresh(project, self.checking)
        pull = project.pulls[iid]
        pull.reviews.append(Review(self.account(login), "APPROVED", pull.head_sha, self.clock.now()))

    def open_issue(self, project: Repository, title: str) -> Issue:
        """Open an issue."""
        made = Issue(project.next_number(), title, None, self.account("ada"), self.clock.now())
        project.issues[made.number] = made
        return made

    # --- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """Admit a request of git by the same tokens as the API's, with the scopes of git."""
        name = re.sub(r"\.git$", "", "/".join(request.path.split("/")[1:3]))
        token = self.tokens.get(password or "")
        if token is None or self._expired(token):
            raise RefusedError(401, "HTTP Basic: Access denied")
        if name not in self.projects:
            raise RefusedError(404, "The project you were looking for could not be found.")
        scopes = {"api", "write_repository"}
        scopes |= set() if "git-receive-pack" in request.path_qs else {"read_repository"}
        if not scopes & set(token.permissions or ()):
            raise RefusedError(403, "You are not allowed to push code to this project.")
        return {"REMOTE_USER": token.account.login}

    def _expired(self, token: Token) -> bool:
        return token.expires is not None and token.expires <= self.clock.now()

    def refuse_request(self, path: list[Mismatch], others: list[Mismatch]) -> None:
        """Refuse with 400, as GitLab names missing and invalid parameters."""
        if path or others:
            raise ApiError(400, {"error": ", ".join(str(one) for one in (*path, *others))})

    async def answer(self, call: Call) -> Reply:
        """Call the route of the operation, after all checks."""
        if not call.operation:
            raise ApiError(404, {"error": "404 Not Found"})
        route, token = _ROUTES[call.operation], self._sender(call)
        call.principal = token.principal
        if not {"api", *(() if route.writes else ("read_api",))} & set(token.permissions or ()):
            raise ApiError(403, {"error": "insufficient_scope", "error_description": _SCOPE, "scope": "api"})
        call.body = _parsed(call.raw)
        self.check_request(call)
        return route.respond(Exchange(self, call, token, self._project(call)))

    def _sender(self, call: Call) -> Token:
        kind, _, bearer = call.headers.get("authorization", "").partition(" ")
        token = self.tokens.get(call.headers.get("private-token", bearer if kind.lower() == "bearer" else ""))
        if token is None:
            raise refused(401, "401 Unauthorized")
        if self._expired(token):
            raise ApiError(401, {"error": "invalid_token", "error_description": _EXPIRED})
        return token

    def _project(self, call: Call) -> Repository | None:
        name = call.parameters.get("id")
        if name is None:
            return None
        for project in self.projects.values():
            if name in {project.full_name, str(project.id)}:
                refresh(project, self.checking)
                return project
        raise refused(404, "404 Project Not Found")


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else ABSENT
    except ValueError as problem:
        raise ApiError(400, {"error": "The request body is not valid JSON"}) from problem
