"""Credentials of forges. The API and git use the same credential. It appears in no URL, argument, log or error.

The `repr` of a `Token` does not contain its value. The client removes the value from a forge's messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.locations import ForgeHost, ForgeKind, ForgeRepository
from spawner.repositories.git import GitCredential

_GIT_USER_NAMES: Final = {ForgeKind.GITHUB: "x-access-token", ForgeKind.GITLAB: "oauth2", ForgeKind.GITEA: "oauth2"}
"""The user name that git sends with a token. GitHub requires this one for tokens of an App. Others accept any name."""
_MAX_TOKEN_CHARACTERS: Final = 8192


@dataclass(frozen=True)
class Token:
    """A token, the account whose rate limits apply to it, and when it expires, if known."""

    value: str = field(repr=False)
    account: str = "token"
    expires_at: datetime | None = None

    def headers(self, kind: ForgeKind) -> Mapping[str, str]:
        """The header of an API request. GitLab also accepts project, personal and OAuth tokens as bearer tokens."""
        return {"authorization": f"{'token' if kind is ForgeKind.GITEA else 'Bearer'} {self.value}"}


class NoCredentialError(ForgeError):
    """A source has no credential for a repository, which may be public. The fault is `DENIED`."""

    def __init__(self, host: ForgeHost) -> None:
        super().__init__(ForgeFault.DENIED, f"no credential is configured for {host.url}")


class TokenSource(Protocol):
    """A source of tokens for a host."""

    async def token(self, repository: ForgeRepository) -> Token:
        """A token for this repository that has not expired. Raises `ForgeError`; `NoCredentialError` if it has none."""
        ...

    async def renew(self, repository: ForgeRepository, refused: Token) -> Token | None:
        """Another token after a response 401; None if there is none. Raises `ForgeError`."""
        ...


class StoredTokens:
    """A token that an operator stored: any token of GitHub, GitLab or Gitea that is not one of a GitHub App.

    `read` returns the token from the environment (`GITHUB_TOKEN`) or a file, or None. It is called for each request, so
    that a token can be replaced while the service runs.
    """

    def __init__(self, read: Callable[[], str | None], account: str = "token") -> None:
        self._read = read
        self._account = account

    async def token(self, repository: ForgeRepository) -> Token:
        """The stored token. Raises `ForgeError`; `NoCredentialError` if there is none."""
        text = self._read()
        if text is None:
            raise NoCredentialError(repository.host)
        return Token(checked_token(text, repository.host), self._account)

    async def renew(self, repository: ForgeRepository, refused: Token) -> Token | None:
        """The stored token, if it was replaced meanwhile."""
        token = await self.token(repository)
        return token if token.value != refused.value else None


class FirstSource:
    """The token of the first source that has one for a repository; a `TokenSource`."""

    def __init__(self, sources: Sequence[TokenSource]) -> None:
        self._sources = sources

    async def token(self, repository: ForgeRepository) -> Token:
        """The token. Raises `ForgeError`, also if a source can't be read: the next one may grant other permissions."""
        return (await self._first(repository))[1]

    async def renew(self, repository: ForgeRepository, refused: Token) -> Token | None:
        """The present token, if it is not the refused one; otherwise a new one from the same source."""
        source, token = await self._first(repository)
        return token if token.value != refused.value else await source.renew(repository, refused)

    async def _first(self, repository: ForgeRepository) -> tuple[TokenSource, Token]:
        for source in self._sources:
            try:
                return source, await source.token(repository)
            except NoCredentialError:
                continue
        raise NoCredentialError(repository.host)


def checked_token(text: str, host: ForgeHost) -> str:
    """The token without surrounding whitespace. Raises `ForgeError` (denied) if the text can't be a token."""
    token = text.strip()
    if (
        not token
        or len(token) > _MAX_TOKEN_CHARACTERS
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise ForgeError(ForgeFault.DENIED, f"no valid token is configured for {host.url}")
    return token


class ForgeCredentials:
    """The credential of one host, for the API and for git."""

    def __init__(self, host: ForgeHost, tokens: TokenSource) -> None:
        self.host = host
        self.tokens = tokens

    async def git_credential(self, repository: ForgeRepository) -> GitCredential:
        """A credential that git sends to this host only. Get a new one for each command. Raises `ForgeError`."""
        token = await self.tokens.token(repository)
        return GitCredential(self.host.origin, _GIT_USER_NAMES[self.host.kind], token.value)
