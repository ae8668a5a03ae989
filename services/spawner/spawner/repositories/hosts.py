"""Which repositories tasks may name, and the credential for each: a spawner connects only to permitted hosts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from sandherd.contracts.repositories import Repository
from sandherd.settings import Settings
from spawner.repositories.git import Credential, GitError, GitFault, RemoteRepository
from spawner.spec_resolution import Refusal

FIELD: Final = "spec.repository"
_GITHUB: Final = "https://github.com"
_GITHUB_USER: Final = "x-access-token"
"""The user name that GitHub ignores beside a token."""
_MAX_FILE: Final = 1024 * 1024


@dataclass(frozen=True)
class RepositoryHosts:
    """The permitted hosts as origins, such as `https://github.com`, and where their credentials are."""

    origins: frozenset[str] = frozenset()
    github_token: str | None = field(default=None, repr=False)
    credentials: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From the settings."""
        origins = (host if "://" in host else f"https://{host}" for host in settings.repository_hosts)
        return cls(frozenset(map(str.lower, origins)), settings.github_token, settings.git_credentials)

    def refusal(self, repository: Repository) -> Refusal | None:
        """Why a task may not name this repository, or None."""
        if repository.checkout is not None:
            return Refusal("checkout is set by the spawner only", FIELD)
        if repository.url is None or origin_of(repository.url) in self.origins:
            return None
        hosts = ", ".join(sorted(origin.removeprefix("https://") for origin in self.origins)) or "no host"
        return Refusal(
            f"the spawner fetches repositories from {hosts} only (SANDHERD_REPOSITORY_HOSTS)", f"{FIELD}.url"
        )

    def remote(self, url: str) -> RemoteRepository:
        """The repository with the credential for its host, if there is one. Raises `GitError`."""
        origin = origin_of(url)
        if origin not in self.origins:
            raise GitError(GitFault.DENIED, "SANDHERD_REPOSITORY_HOSTS no longer permits this host")
        return RemoteRepository(url, self._credential(origin))

    def _credential(self, origin: str) -> Credential | None:
        if self.credentials is not None:
            for stored in _stored(self.credentials):
                if stored.origin == origin:
                    return stored
        if origin == _GITHUB and self.github_token is not None:
            return Credential(origin, _GITHUB_USER, self.github_token)
        return None


def origin_of(url: str) -> str:
    """The scheme, host and port of a URL, in lower case and without a port that is the scheme's own."""
    parts = urlsplit(url)
    own = {"https": 443, "http": 80}.get(parts.scheme)
    port = f":{parts.port}" if parts.port not in (None, own) else ""
    return f"{parts.scheme}://{parts.hostname}{port}".lower()


def _stored(file: Path) -> Iterator[Credential]:
    """The credentials in a file of git-credential-store(1). Raises `GitError`; no message contains its content."""
    try:
        with file.open(encoding="utf-8") as opened:
            lines: Sequence[str] = opened.read(_MAX_FILE).splitlines()
    except (OSError, UnicodeError) as error:
        problem = f"SANDHERD_GIT_CREDENTIALS: {file} can't be read ({type(error).__name__})"
        raise GitError(GitFault.UNAVAILABLE, problem) from None
    for line in lines:
        try:
            parts = urlsplit(line.strip())
            origin = origin_of(line.strip())
        except ValueError:
            continue  # a line that is no URL names no host
        if parts.username and parts.password:
            yield Credential(origin, unquote(parts.username), unquote(parts.password))
