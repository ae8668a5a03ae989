"""Tokens of a GitHub App: for one repository and some permissions, renewed before they expire.

A token of an installation is valid for an hour. For each request of one, the App's key signs a JWT. The key stays in
its file.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel

from spawner.forges.api import ForgeApi, read_as
from spawner.forges.credentials import NoCredentialError, Token, checked_token
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.http_client import HttpClient
from spawner.forges.locations import ForgeRepository
from spawner.forges.rate_limits import ForgeAccount

PERMISSIONS: Final[Mapping[str, str]] = {
    "contents": "write",
    "pull_requests": "write",
    "issues": "read",
    "checks": "read",
    "statuses": "read",
}
"""The permissions that the client needs. A push of workflows also needs `workflows`, which has to be configured."""
_RENEWED_BEFORE: Final = timedelta(minutes=5)
"""How long before it expires a token is replaced: longer than a push takes."""
_JWT_SECONDS: Final = 540


@dataclass(frozen=True)
class GithubApp:
    """An App: its id or client id, the file of its private key, and the permissions of its tokens."""

    id: str
    private_key: Path
    permissions: Mapping[str, str]
    installation: int | None = None
    """The id of the only installation that is used. None: each repository's, even if a stranger installed the App."""


class _Installation(BaseModel):
    id: int


class _IssuedToken(BaseModel):
    token: str
    expires_at: AwareDatetime


class _AppJwt:
    """The App's own credential, a new one for each request; a `TokenSource`."""

    def __init__(self, app: GithubApp) -> None:
        self._app = app

    async def token(self, repository: ForgeRepository) -> Token:  # noqa: ARG002  # one for all repositories
        """A JWT of nine minutes. Raises `ForgeError` without a usable key."""
        return await asyncio.to_thread(self._signed)

    async def renewed(self, repository: ForgeRepository, refused: Token) -> Token | None:  # noqa: ARG002  # never
        """None: another JWT would be refused, too."""
        return None

    def _signed(self) -> Token:
        from gidgethub.apps import get_jwt

        try:
            key = self._app.private_key.read_bytes()
            return Token(get_jwt(app_id=self._app.id, private_key=key, expiration=_JWT_SECONDS), f"app {self._app.id}")
        except Exception as error:  # noqa: BLE001  # of the file, PyJWT or cryptography; its text may have parts of the key
            kind = type(error).__name__
        raise ForgeError(ForgeFault.DENIED, f"the private key of GitHub App {self._app.id} can't be used ({kind})")


class AppTokens:
    """The tokens of an App's installations, by repository; a `TokenSource`."""

    def __init__(self, app: GithubApp, http: HttpClient, accounts: dict[str, ForgeAccount]) -> None:
        self._app = app
        self._http = http
        self._accounts = accounts
        self._tokens: dict[str, Token] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def token(self, repository: ForgeRepository) -> Token:
        """The repository's token. It is replaced five minutes before it expires.

        Raises `ForgeError`, `NoCredentialError` for a repository without an installation.
        """
        return await self._current(repository, None)

    async def renewed(self, repository: ForgeRepository, refused: Token) -> Token | None:
        """A new token, or the one that was issued meanwhile."""
        return await self._current(repository, refused)

    async def _current(self, repository: ForgeRepository, refused: Token | None) -> Token:
        async with self._locks.setdefault(repository.path, asyncio.Lock()):
            token = self._tokens.get(repository.path)
            if token is None or _expires(token, datetime.now(UTC)) or (refused and token.value == refused.value):
                self._tokens.pop(repository.path, None)  # not used again, even if no other one is issued
                token = self._tokens[repository.path] = await self._issue(repository)
            return token

    async def _issue(self, repository: ForgeRepository) -> Token:
        api = ForgeApi(repository, _AppJwt(self._app), self._http, self._accounts)
        found = await self._installation(api, repository)
        body = {"repositories": [repository.name], "permissions": dict(self._app.permissions)}
        path = "/app/installations/{id}/access_tokens"
        issued = read_as(_IssuedToken, await api.send("POST", path, body, id=found.id), path)
        return Token(checked_token(issued.token, repository.host), f"installation {found.id}", issued.expires_at)

    async def _installation(self, api: ForgeApi, repository: ForgeRepository) -> _Installation:
        try:
            found = await api.get(_Installation, "/repos/{owner}/{repo}/installation")
        except ForgeError as error:
            if error.fault is not ForgeFault.NOT_FOUND:
                raise
            found = None
        if found is None or self._app.installation not in {None, found.id}:
            raise NoCredentialError(repository.host)
        return found


def _expires(token: Token, now: datetime) -> bool:
    return token.expires_at is not None and token.expires_at - now < _RENEWED_BEFORE
