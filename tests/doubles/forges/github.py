"""GitHub: its REST API, checked against the published OpenAPI document, and git over HTTP, of the same repositories.

The API is at `api_url` (`/api/v3`, as on GitHub Enterprise Server), and git at `url/OWNER/NAME.git`.
"""

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from functools import cache
from typing import Any, ClassVar, Final, Literal

from aiohttp import web

from tests.doubles.forges import github_apps, github_issues, github_pulls, github_refs
from tests.doubles.forges.bare_repository import BareRepository
from tests.doubles.forges.calls import Call
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documented import DocumentedForge
from tests.doubles.forges.documents import github_document
from tests.doubles.forges.forge_state import Account, Issue, Pull, Repository, Review, Token
from tests.doubles.forges.github_access import Access
from tests.doubles.forges.github_apps import App, TokenForm, new_token
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import PullShapes, error
from tests.doubles.forges.github_webhooks import Webhooks
from tests.doubles.forges.openapi import Document, Mismatch
from tests.doubles.forges.pull_states import refresh
from tests.doubles.forges.replies import ABSENT, Reply

_ROUTES: Final[dict[str, Route]] = {
    **github_refs.ROUTES, **github_pulls.ROUTES, **github_issues.ROUTES, **github_apps.ROUTES,
}  # fmt: skip
_HOUR: Final = 3600
_PREFIXES: Final = {"classic": "ghp_", "fine_grained": "github_pat_", "oauth": "gho_"}


@cache
def document() -> Document:
    """What GitHub publishes of the operations that are served here."""
    return Document(github_document(list(_ROUTES)))


class GitHub(DocumentedForge):
    """GitHub with the organization `team`; `async with` it. Repositories are private."""

    prefix: ClassVar[str] = "/api/v3"
    error_schema: ClassVar[dict[str, Any] | None] = {"$ref": "urn:forge#/components/schemas/basic-error"}

    def __init__(self, clock: Clock | None = None, *, unknown_gets: int = 1, update_gets: int = 1) -> None:
        super().__init__(clock)
        self.unknown_gets, self.update_gets = unknown_gets, update_gets
        self.repositories: dict[str, Repository] = {}
        self.accounts = {"team": Account("team", "Organization")}
        self.tokens: dict[str, Token] = {}
        self.apps: dict[str, App] = {}
        """By the principal of their tokens."""
        self.limit = 5000
        """Requests per hour and principal."""
        self.blind_merges: list[Call] = []
        """Merges whose client had not seen that the pull request is mergeable."""
        self.unguarded_merges: list[Call] = []
        """Merges without `sha`."""
        self.webhooks = Webhooks(lambda: self.shapes)
        self.access = Access(self)

    @property
    def shapes(self) -> PullShapes:
        """For responses, with URLs of this server."""
        return PullShapes(self.url, self.api_url)

    # --- what a test sets up -------------------------------------------------------------------------------------

    def create_repository(self, full_name: str = "team/shop", files: Mapping[str, str] | None = None) -> Repository:
        """A repository with one commit on `main`."""
        owner = self.account(full_name.split("/", maxsplit=1)[0])
        git = BareRepository.create(self.folder / "served" / f"{full_name}.git")
        git.commit("main", files or {"README.md": "shop\n"}, "first")
        made = Repository(full_name, owner, git, self.clock.now(), collaborators={"ada", "grace"})
        self.repositories[full_name] = made
        return made

    def account(self, login: str) -> Account:
        """A person, or an organization or bot that exists."""
        return self.accounts.setdefault(login, Account(login))

    def person_token(
        self,
        login: str = "ada",
        kind: Literal["classic", "fine_grained", "oauth"] = "classic",
        *,
        expires: datetime | None = None,
        repositories: frozenset[str] | None = None,
        permissions: Mapping[str, str] | None = None,
    ) -> str:
        """A person's token."""
        value = _PREFIXES[kind] + secrets.token_hex(18)
        self.tokens[value] = Token(value, self.account(login), kind, expires, repositories, permissions, login)
        return value

    def install_app(self, slug: str = "sandherd", *, form: TokenForm = "opaque", **settings: Any) -> App:
        """An app, installed in the organization `team`."""
        bot = self.accounts.setdefault(f"{slug}[bot]", Account(f"{slug}[bot]", "Bot"))
        app = App(slug, bot, self.accounts["team"], form=form, **settings)
        self.apps[f"installation {app.installation}"] = app
        return app

    def installation_token(self, app: App) -> str:
        """A token of all that the installation permits, without a request."""
        expires = self.clock.now() + github_apps.LIFETIME
        return self.issue_token(app, expires, app.repositories, app.permissions)

    def issue_token(
        self, app: App, expires: datetime, repositories: frozenset[str] | None, permissions: Mapping[str, str]
    ) -> str:
        """A token of an installation."""
        value, principal = new_token(app, self.clock.now()), f"installation {app.installation}"
        self.tokens[value] = Token(value, app.account, "installation", expires, repositories, permissions, principal)
        return value

    def revoke(self, token: str) -> None:
        """From now on it is not valid."""
        del self.tokens[token]

    def open_issue(self, repository: Repository, title: str, login: str = "ada") -> Issue:
        """An issue, no pull request."""
        made = Issue(repository.next_number(), title, None, self.account(login), self.clock.now())
        repository.issues[made.number] = made
        return made

    def review(self, repository: Repository, number: int, state: str = "APPROVED", login: str = "grace") -> Review:
        """A review of the latest commit."""
        self._refresh(repository)
        pull = repository.pulls[number]
        made = Review(self.account(login), state, pull.head_sha, self.clock.now())
        pull.reviews.append(made)
        return made

    def record_merge(self, repository: Repository, pull: Pull, commit: str, account: Account) -> None:
        """The pull request is merged as this commit; also for a test that merges as the queue does."""
        pull.state, pull.merge_commit, pull.merged_by = "closed", commit, account
        pull.merged = pull.closed = pull.updated = self.clock.now()
        self.webhooks.pull(repository, pull, "closed", account)

    # --- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """By the same tokens as the API."""
        return self.access.of_git(request, password)

    @property
    def document(self) -> Document:
        """GitHub's own."""
        return document()

    def refuse_request(self, path: list[Mismatch], others: list[Mismatch]) -> None:
        """404 for a number that is none, else 422."""
        if path:
            raise error(404, "Not Found")
        if others:
            raise error(422, "Invalid request.\n\n" + "\n".join(one.message for one in others))

    async def answer(self, request: web.Request, call: Call) -> Reply:
        """By the route of the operation, after all checks."""
        if not call.operation:
            raise error(404, "Not Found")
        route = _ROUTES[call.operation]
        token = self.access.of_request(call)
        self.access.check_limit(call)
        call.body = _parsed(await request.read())
        repository = self.access.repository(call, token)
        self.access.check_permission(call, token, repository, route)
        self.check_request(call)
        if repository:
            self._refresh(repository)
        return route.respond(Exchange(self, call, token, repository))

    def _refresh(self, repository: Repository) -> None:
        refresh(repository, self.unknown_gets)

    def add_headers(self, call: Call, reply: Reply) -> None:
        """The time and the limits."""
        limits = self.limits(call.principal)
        told = {f"x-ratelimit-{name}": str(limits[name]) for name in ("limit", "remaining", "reset", "used")}
        own = {name.lower() for name in reply.headers}
        defaults = {
            **told,
            "x-ratelimit-resource": "core",
            "date": format_datetime(self.clock.now(), usegmt=True),
            "x-github-media-type": "github.v3; format=json",
            "x-github-request-id": secrets.token_hex(8).upper(),
        }
        reply.headers |= {name: text for name, text in defaults.items() if name not in own}

    def used(self, principal: str) -> int:
        """How many requests of this hour count for the primary limit of a principal."""
        now = self.clock.now().timestamp()
        mine = [one for one in self.calls if one.principal == principal and one.at.timestamp() >= now - now % _HOUR]
        return sum(one.operation != "rate-limit/get" and one.status not in {304, 401} for one in mine)

    def limits(self, principal: str) -> dict[str, int]:
        """The primary limit of a principal in this hour."""
        now, used = self.clock.now().timestamp(), min(self.limit, self.used(principal))
        return {
            "limit": self.limit,
            "used": used,
            "remaining": self.limit - used,
            "reset": int(now - now % _HOUR + _HOUR),
        }


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else ABSENT
    except ValueError as problem:
        raise error(400, "Problems parsing JSON") from problem
