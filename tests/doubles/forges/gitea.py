"""Gitea (and Forgejo): its REST API, checked against the models of a generated client, and git over HTTP.

The API is at `api_url` (`/api/v1`), and git at `url/OWNER/NAME.git`. Error texts are those of Gitea's source.
"""

import json
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Final

from aiohttp import web

from tests.doubles.forges import gitea_pulls, gitea_repositories
from tests.doubles.forges.bare_repository import BareRepository
from tests.doubles.forges.calls import Call
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documented import DocumentedForge
from tests.doubles.forges.forge_state import Account, BranchRules, Issue, Repository, Review, Token
from tests.doubles.forges.gitea_document import gitea_document
from tests.doubles.forges.gitea_exchange import Exchange, Route, refused
from tests.doubles.forges.gitea_shapes import GiteaShapes
from tests.doubles.forges.openapi import Document, Mismatch
from tests.doubles.forges.pull_states import refresh
from tests.doubles.forges.replies import ABSENT, Reply
from tests.doubles.git_server import RefusedError

_ROUTES: Final[dict[str, Route]] = {**gitea_repositories.ROUTES, **gitea_pulls.ROUTES}
_OLD_NAMES: Final = {
    "Do": "do",
    "MergeTitleField": "merge_title_field",
    "MergeMessageField": "merge_message_field",
    "MergeCommitID": "merge_commit_id",
}
"""Names of a merge's fields up to Gitea 1.25 and in Forgejo; later versions have the other names."""


@cache
def document() -> Document:
    """The description of the served operations, derived from the generated client."""
    return Document(gitea_document(list(_ROUTES)))


class Gitea(DocumentedForge):
    """Gitea with the organization `team`; `async with` it. Repositories are private."""

    prefix: ClassVar[str] = "/api/v1"
    etags: ClassVar[bool] = False
    general_statuses: ClassVar[frozenset[int]] = DocumentedForge.general_statuses | {422}
    error_schema: ClassVar[dict[str, Any] | None] = {
        "type": "object",
        "properties": {"message": {"type": "string"}, "url": {"type": "string"}},
        "required": ["message", "url"],
        "additionalProperties": False,
    }

    def __init__(self, clock: Clock | None = None, *, checking: int = 1) -> None:
        super().__init__(clock)
        self.checking = checking
        """The number of gets and merges of a changed pull request before Gitea knows whether it is mergeable."""
        self.repositories: dict[str, Repository] = {}
        self.accounts = {"team": Account("team", "Organization")}
        self.tokens: dict[str, Token] = {}
        self.unguarded_merges: list[Call] = []
        """Merges without `head_commit_id`."""

    def document_for(self, call: Call) -> Document:
        """The document of Gitea."""
        return document()

    @property
    def shapes(self) -> GiteaShapes:
        """The JSON of responses, with URLs of this server."""
        return GiteaShapes(self.url, self.api_url)

    # --- what a test sets up -------------------------------------------------------------------------------------

    def create_repository(self, full_name: str = "team/shop", files: Mapping[str, str] | None = None) -> Repository:
        """Create a repository with one commit on `main`."""
        git = BareRepository.create(self.folder / "served" / f"{full_name}.git")
        git.commit("main", files or {"README.md": "shop\n"}, "first")
        owner = self.account(full_name.split("/", maxsplit=1)[0])
        self.repositories[full_name] = Repository(
            full_name, owner, git, self.clock.now(), collaborators={"ada", "grace"}
        )
        return self.repositories[full_name]

    def protect(self, repository: Repository, pattern: str, **requirements: Any) -> BranchRules:
        """Protect branches; a push to them is refused with Gitea's text."""
        made = repository.protect(pattern, **requirements)
        text = "Gitea: Not allowed to push to protected branch {}"
        repository.git.protect({f"refs/heads/{one.pattern}": text.format(one.pattern) for one in repository.rules})
        return made

    def account(self, login: str) -> Account:
        """Create a user or an organization."""
        return self.accounts.setdefault(login, Account(login))

    def token(
        self, login: str = "ada", scopes: Mapping[str, str] | None = None, *, expires: datetime | None = None
    ) -> str:
        """Create a token; `scopes` are levels (`read`, `write`) of `repository`, `issue` and `user`."""
        value = secrets.token_hex(20)
        self.tokens[value] = Token(value, self.account(login), "classic", expires, None, scopes, login)
        return value

    def review(self, repository: Repository, number: int, state: str = "APPROVED", login: str = "grace") -> Review:
        """Add a review of the latest commit."""
        refresh(repository, self.checking)
        pull = repository.pulls[number]
        pull.reviews.append(Review(self.account(login), state, pull.head_sha, self.clock.now()))
        return pull.reviews[-1]

    def open_issue(self, repository: Repository, title: str) -> Issue:
        """Open an issue that is not a pull request."""
        made = Issue(repository.next_number(), title, None, self.account("ada"), self.clock.now())
        repository.issues[made.number] = made
        return made

    # --- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """Admit a request of git by the same tokens as the API's."""
        name = re.sub(r"\.git$", "", "/".join(request.path.split("/")[1:3]))
        token = self._valid(password or "")
        if token is None:
            raise RefusedError(401, "Unauthorized")
        if name not in self.repositories:
            raise RefusedError(404, "Not found.")
        if not token.permits("repository", "write" if "git-receive-pack" in request.path_qs else "read"):
            raise RefusedError(403, "User permission denied")
        return {"REMOTE_USER": token.account.login}

    def _valid(self, value: str) -> Token | None:
        token = self.tokens.get(value)
        expired = token is not None and token.expires is not None and token.expires <= self.clock.now()
        return None if expired else token

    def refuse_request(self, path: list[Mismatch], others: list[Mismatch]) -> None:
        """Refuse with 422, as Gitea's forms do."""
        if path or others:
            raise refused(422, "; ".join(str(one) for one in (*path, *others)))

    async def answer(self, call: Call) -> Reply:
        """Call the route of the operation, after all checks."""
        if not call.operation:
            raise refused(404, "The target couldn't be found.")
        route = _ROUTES[call.operation]
        kind, _, value = call.headers.get("authorization", "").partition(" ")
        token = self._valid(value) if kind.lower() in {"token", "bearer"} else None
        if token is None:
            raise refused(401, "token is required" if not kind else "user does not exist [uid: 0, name: ]")
        call.principal = token.principal
        call.body = _parsed(call.raw, call)
        self.check_request(call)
        if not token.permits(route.scope, route.level):
            raise refused(403, f"token does not have at least one of required scope(s): [{route.level}:{route.scope}]")
        return route.respond(Exchange(self, call, token, self._repository(call)))

    def _repository(self, call: Call) -> Repository | None:
        if "repo" not in call.parameters:
            return None
        found = self.repositories.get(f"{call.parameters['owner']}/{call.parameters['repo']}")
        if found is None:
            raise refused(404, "The target couldn't be found.")
        refresh(found, self.checking)
        return found


def _parsed(raw: bytes, call: Call) -> Any:
    try:
        body = json.loads(raw) if raw else ABSENT
    except ValueError as problem:
        raise refused(422, "[]: Deserialization") from problem
    if call.operation == "repo_merge_pull_request" and isinstance(body, dict):
        return {_OLD_NAMES.get(name, name): value for name, value in body.items()}
    return body
