"""Access control of GitHub: tokens, permissions and the primary limit, for the API and for git."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tests.doubles.forges.calls import Call
from tests.doubles.forges.forge_state import Pull, Repository, Token
from tests.doubles.forges.github_apps import fault_of_jwt
from tests.doubles.forges.github_exchange import Route
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.git_server import RefusedError

if TYPE_CHECKING:
    from tests.doubles.forges.github import GitHub

_PRIMARY: Final = "API rate limit exceeded for {}. If you reach out to GitHub Support for help, please include the ID."
_WORKFLOW: Final = (
    "refusing to allow a GitHub App to create or update workflow `.github/workflows` without `workflows` permission"
)
_OF_APPS: Final = frozenset({"apps/create-installation-access-token", "apps/get-repo-installation"})
_OPEN: Final = frozenset({"rate-limit/get"})


class Access:
    """The access control of one GitHub."""

    def __init__(self, github: "GitHub") -> None:
        self._github = github

    def valid(self, value: str) -> Token | None:
        """The token, if it exists and has not expired."""
        token = self._github.tokens.get(value)
        expired = token is not None and token.expires is not None and token.expires <= self._github.clock.now()
        return None if expired else token

    def of_request(self, call: Call) -> Token | None:
        """The token of a request to the API. Raises 401."""
        kind, _, value = call.headers.get("authorization", "").partition(" ")
        if call.operation in _OF_APPS:
            return self._app(call, value)
        if not kind:
            if call.operation in _OPEN:
                return None
            raise error(401, "Requires authentication")
        token = self.valid(value) if kind.lower() in {"bearer", "token"} else None
        if token is None:
            raise error(401, "Bad credentials")
        call.principal = token.principal
        return token

    def _app(self, call: Call, value: str) -> Token:
        fault = "A JSON web token could not be decoded"
        for principal, app in self._github.apps.items():
            found = fault_of_jwt(app, value, self._github.clock.now())
            if found is None:
                call.principal = f"app {app.id}"
                return Token(value, app.account, "app", principal=principal)
            fault = found
        raise error(401, fault)

    def check_limit(self, call: Call) -> None:
        """Check the primary limit. Raises 403."""
        if self._github.used(call.principal) > self._github.limit and call.operation not in _OPEN:
            raise error(403, _PRIMARY.format(call.principal))

    def repository(self, call: Call, token: Token | None) -> Repository | None:
        """The repository in the path, if there is one. Raises 404, also if the token does not include it."""
        if "repo" not in call.parameters:
            return None
        found = self._github.repositories.get(f"{call.parameters['owner']}/{call.parameters['repo']}")
        if found is None or (token is not None and not token.reaches(found.full_name)):
            raise error(404, "Not Found")
        return found

    def check_permission(self, call: Call, token: Token | None, repository: Repository | None, route: Route) -> None:
        """Check the permission of the route. Raises 403."""
        if token is None or token.permits(route.permission, route.level):
            return
        if route.permission == "issues" and repository and token.permits("pull_requests", route.level):
            number = int(call.parameters["issue_number"])
            if isinstance(repository.issues.get(number), Pull):
                return
        kind = "integration" if token.kind == "installation" else "personal access token"
        raise error(403, f"Resource not accessible by {kind}")

    def of_git(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """Admit a request of git. Raises `RefusedError`."""
        name = re.sub(r"\.git$", "", "/".join(request.path.split("/")[1:3]))
        if password is None:
            raise RefusedError(401, "Authentication required")
        token, found = self.valid(password), self._github.repositories.get(name)
        if token is None:
            raise RefusedError(
                401, "Invalid username or token. Password authentication is not supported for Git operations."
            )
        if found is None or not token.reaches(found.full_name):
            raise RefusedError(404, "Repository not found.")
        pushes = "git-receive-pack" in request.path_qs
        if not token.permits("contents", "write" if pushes else "read"):
            raise RefusedError(403, f"Permission to {name}.git denied to {token.account.login}.")
        refusal = "" if token.permits("workflows", "write") else _WORKFLOW
        return {"REMOTE_USER": token.account.login, "FORGE_WORKFLOWS": refusal}
