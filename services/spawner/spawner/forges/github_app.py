"""Tokens of a GitHub App. A token is for one repository and some permissions, and is replaced before it expires.

A token of an installation is valid for an hour. A request for a token is authenticated by a JWT, which is signed with
the App's key. The key is read from its file each time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel

from sandherd.concurrency import KeyedLocks
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
_RENEWAL_MARGIN: Final = timedelta(minutes=5)
"""The time before its expiry at which a token is replaced. It is longer than a push takes."""
_JWT_SECONDS: Final = 540
"""The lifetime of a JWT."""


@dataclass(frozen=True)
class GithubApp:
    """An App: its id or client id, the file of its private key, and the permissions of its tokens."""

    id: str
    private_key: Path
    permissions: Mapping[str, str]
    installation: int | None = None
    """The id of the only installation that is used. None: that of each repository, whichever account it is of."""


class _Installation(BaseModel):
    id: int


class _IssuedToken(BaseModel):
    token: str
    expires_at: AwareDatetime


class _AppJwt:
    """The credential of the App itself: a new JWT for each request. It is a `TokenSource`."""

    def __init__(self, app: GithubApp) -> None:
        self._app = app

    async def token(self, repository: ForgeRepository) -> Token:  # noqa: ARG002  # a JWT is for all repositories
        """A JWT that is valid for nine minutes. Raises `ForgeError` if the key can't be used."""
        return await asyncio.to_thread(self._new_jwt)

    async def renew(self, repository: ForgeRepository, refused: Token) -> Token | None:  # noqa: ARG002  # as the protocol requires
        """Return None, because another JWT would be refused, too."""
        return None

    def _new_jwt(self) -> Token:
        from gidgethub.apps import get_jwt

        try:
            key = self._app.private_key.read_bytes()
            return Token(get_jwt(app_id=self._app.id, private_key=key, expiration=_JWT_SECONDS), f"app {self._app.id}")
        except Exception as error:  # noqa: BLE001  # any error of the file, PyJWT or cryptography; its text may have parts of the key
            kind = type(error).__name__
        raise ForgeError(ForgeFault.DENIED, f"the private key of GitHub App {self._app.id} can't be used ({kind})")


class AppTokens:
    """The tokens of an App's installations, by repository. It is a `TokenSource`."""

    def __init__(self, app: GithubApp, http: HttpClient, accounts: dict[str, ForgeAccount]) -> None:
        self._app = app
        self._http = http
        self._accounts = accounts
        self._tokens: dict[str, Token] = {}
        self._locks: KeyedLocks[str] = KeyedLocks()

    async def token(self, repository: ForgeRepository) -> Token:
        """The repository's token. It is replaced five minutes before it expires.

        Raises `ForgeError`; `NoCredentialError` for a repository without an installation.
        """
        return await self._valid_token(repository, None)

    async def renew(self, repository: ForgeRepository, refused: Token) -> Token | None:
        """A new token, or the one that was issued meanwhile."""
        return await self._valid_token(repository, refused)

    async def _valid_token(self, repository: ForgeRepository, refused: Token | None) -> Token:
        """The repository's token; a new one if it expires soon, or if it is the refused one."""
        async with self._locks.hold(repository.path):
            token = self._tokens.get(repository.path)
            if token is None or _expires_soon(token, datetime.now(UTC)) or (refused and token.value == refused.value):
                self._tokens.pop(repository.path, None)  # not used again, even if no other token is issued
                token = self._tokens[repository.path] = await self._issue(repository)
            return token

    async def _issue(self, repository: ForgeRepository) -> Token:
        api = ForgeApi(repository, _AppJwt(self._app), self._http, self._accounts)
        installation = await self._installation(api, repository)
        body = {"repositories": [repository.name], "permissions": dict(self._app.permissions)}
        path = "/app/installations/{id}/access_tokens"
        issued = read_as(_IssuedToken, await api.send("POST", path, body, id=installation.id), path)
        account = f"installation {installation.id}"
        return Token(checked_token(issued.token, repository.host), account, issued.expires_at)

    async def _installation(self, api: ForgeApi, repository: ForgeRepository) -> _Installation:
        try:
            installation = await api.get(_Installation, "/repos/{owner}/{repo}/installation")
        except ForgeError as error:
            if error.fault is not ForgeFault.NOT_FOUND:
                raise
            installation = None
        if installation is None or self._app.installation not in {None, installation.id}:
            raise NoCredentialError(repository.host)
        return installation


def _expires_soon(token: Token, now: datetime) -> bool:
    return token.expires_at is not None and token.expires_at - now < _RENEWAL_MARGIN
