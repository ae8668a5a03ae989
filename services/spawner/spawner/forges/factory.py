"""Creates the clients of forges. Their modules are imported at the first use, because not every herd uses a forge."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spawner.forges.credentials import FirstSource, ForgeCredentials, NoCredentialError, TokenSource
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import Forge
from spawner.forges.locations import WELL_KNOWN, ForgeHost, ForgeKind, ForgeRepository, forge_of
from spawner.forges.rate_limits import ForgeAccount, RateLimit
from spawner.forges.reply_cache import ReplyCache

if TYPE_CHECKING:
    from spawner.forges.github_app import GithubApp
    from spawner.forges.http_client import HttpClient


class Forges:
    """The known forges, with the credentials and the clients of those that have a credential."""

    def __init__(self, hosts: Iterable[ForgeHost] = ()) -> None:
        """`hosts`: forges besides the well-known ones."""
        self.hosts = tuple(dict.fromkeys((*hosts, *WELL_KNOWN)))
        self._sources: dict[ForgeHost, TokenSource] = {}
        self._accounts: dict[ForgeHost, dict[str, ForgeAccount]] = {}
        self._forges: dict[ForgeRepository, Forge] = {}
        self._http: HttpClient | None = None
        self._replies = ReplyCache()

    def add_sources(self, host: ForgeHost, sources: Iterable[TokenSource]) -> None:
        """Use the first of these sources that has a token for a repository."""
        self._sources[host] = FirstSource(tuple(sources))
        self._forges.clear()  # existing clients use the old sources

    def app_tokens(self, host: ForgeHost, app: "GithubApp") -> TokenSource:
        """The tokens of a GitHub App."""
        from spawner.forges.github_app import AppTokens

        return AppTokens(app, self._client(), self._limits(host))

    def repository(self, url: str) -> ForgeRepository | None:
        """The repository of a URL, or None if its host is not a known forge. Raises `ForgeError` as `forge_of` does."""
        return forge_of(url, self.hosts)

    def of(self, repository: ForgeRepository) -> Forge:
        """The client of a repository. Raises `NoCredentialError` if none is configured for its host."""
        if repository not in self._forges:
            self._forges[repository] = self._open(repository, self.credentials(repository.host).tokens)
        return self._forges[repository]

    def of_url(self, url: str) -> Forge:
        """The client of the repository with this URL. Raises `ForgeError` without a known forge or a credential."""
        return self.of(self.require(url))

    def require(self, url: str) -> ForgeRepository:
        """The repository with this URL. Raises `ForgeError` if its host is not a known forge."""
        repository = self.repository(url)
        if repository is None:
            raise ForgeError(ForgeFault.REFUSED, "its host is not a configured forge, so it has no pull requests")
        return repository

    def credentials(self, host: ForgeHost) -> ForgeCredentials:
        """The credential of a host. Raises `NoCredentialError` if none is configured."""
        if host not in self._sources:
            raise NoCredentialError(host)
        return ForgeCredentials(host, self._sources[host])

    def rate_limits(self) -> Mapping[tuple[str, str], RateLimit]:
        """The rate limits as of the last responses, by the URL of the host and the account."""
        return {
            (host.url, name): account.limit
            for host, accounts in self._accounts.items()
            for name, account in accounts.items()
        }

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()

    def _open(self, repository: ForgeRepository, tokens: TokenSource) -> Forge:
        from spawner.forges.api import ForgeApi

        api = ForgeApi(repository, tokens, self._client(), self._limits(repository.host), self._replies)
        match repository.host.kind:
            case ForgeKind.GITHUB:
                from spawner.forges.github import Github

                return Github(api)
            case ForgeKind.GITLAB:
                from spawner.forges.gitlab import Gitlab

                return Gitlab(api)
            case ForgeKind.GITEA:
                from spawner.forges.gitea import Gitea

                return Gitea(api)

    def _client(self) -> "HttpClient":
        from spawner.forges.http_client import HttpClient

        if self._http is None:
            self._http = HttpClient()
        return self._http

    def _limits(self, host: ForgeHost) -> dict[str, ForgeAccount]:
        return self._accounts.setdefault(host, {})
