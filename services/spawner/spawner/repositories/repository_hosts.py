"""The permitted hosts of repositories, and the credential for each: the spawner connects to no other host."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, TypeVar

from sandherd.contracts.repositories import Repository
from sandherd.settings import Settings
from spawner.repositories.credential_file import origin_of
from spawner.repositories.git import GitCredential, GitError, GitFault, RemoteRepository
from spawner.repositories.git_requirements import git_problem
from spawner.spec_resolution import Refusal

FIELD: Final = "spec.repository"
"""The field to which a refusal refers."""
ResultT = TypeVar("ResultT")
Protects = Callable[[str, str], Awaitable[bool]]
"""Whether the repository with this URL is known to protect the branch with this name."""


class CredentialSource(Protocol):
    """A source of credentials for git. Methods raise `GitError`."""

    async def find(self, url: str) -> GitCredential | None:
        """The credential for a repository, or None. It is read for each command, because it may be replaced."""
        ...

    async def renew(self, url: str, refused: GitCredential) -> GitCredential | None:
        """Another credential after the host has refused this one; None if there is none."""
        ...


class NoCredentials:
    """The source of a spawner without credentials."""

    async def find(self, url: str) -> GitCredential | None:  # noqa: ARG002  # as the protocol requires
        """Return None."""
        return None

    async def renew(self, url: str, refused: GitCredential) -> GitCredential | None:  # noqa: ARG002  # as the protocol requires
        """Return None."""
        return None


def _origins(hosts: Iterable[str]) -> frozenset[str]:
    return frozenset((host if "://" in host else f"https://{host}").lower() for host in hosts)


@dataclass(frozen=True)
class RepositoryHosts:
    """The permitted hosts as origins, such as `https://github.com`, and the source of their credentials."""

    origins: frozenset[str] = frozenset()
    credentials: CredentialSource = field(default_factory=NoCredentials)
    protects: Protects | None = None
    lfs_origins: frozenset[str] = frozenset()
    """Origins, besides `origins`, from which objects of Git LFS may be transferred."""
    proxies: bool = False
    """Whether sandboxes can reach repositories by the git proxy."""

    @classmethod
    def of(
        cls, settings: Settings, credentials: CredentialSource | None = None, protects: Protects | None = None
    ) -> Self:
        """The hosts in the settings."""
        origins, lfs_origins = _origins(settings.repository_hosts), _origins(settings.lfs_hosts)
        return cls(
            origins, credentials or NoCredentials(), protects, lfs_origins, proxies=settings.git_proxy_url is not None
        )

    def refusal(self, repository: Repository) -> Refusal | None:
        """Why a task may not name this repository, or None."""
        if repository.checkout is not None:
            return Refusal("checkout is set by the spawner only", FIELD)
        if (problem := git_problem()) is not None:
            return Refusal(problem, FIELD)
        if repository.git_proxy and not self.proxies:
            return Refusal("this herd has no git proxy (SANDHERD_GIT_PROXY_URL)", f"{FIELD}.git_proxy")
        if repository.url is None or origin_of(repository.url) in self.origins:
            return None
        hosts = ", ".join(sorted(origin.removeprefix("https://") for origin in self.origins)) or "no host"
        return Refusal(
            f"the spawner fetches repositories from {hosts} only (SANDHERD_REPOSITORY_HOSTS)", f"{FIELD}.url"
        )

    async def check_branch(self, url: str, branch: str) -> None:
        """Raise `GitError` if the repository protects this branch, so that its pushes would be refused."""
        if self.protects is not None and await self.protects(url, branch):
            reason = f"the repository protects {branch}, so that it can't be pushed"
            raise GitError(
                GitFault.REFUSED, f"{reason}: change its rule, or the prefixes of branches (SANDHERD_BRANCH_PREFIXES)"
            )

    async def remote(self, url: str) -> RemoteRepository:
        """The repository with the credential for its host, if there is one. Raises `GitError`."""
        if origin_of(url) not in self.origins:
            raise GitError(GitFault.DENIED, "SANDHERD_REPOSITORY_HOSTS no longer permits this host")
        return RemoteRepository(url, await self.credentials.find(url))

    async def use(self, url: str, command: Callable[[RemoteRepository], Awaitable[ResultT]]) -> ResultT:
        """Run a git command with the repository. Retry it if its credential is refused and there is another one.

        Raises `GitError`.
        """
        remote = await self.remote(url)
        try:
            return await command(remote)
        except GitError as error:
            if error.fault is not GitFault.DENIED or remote.credential is None:
                raise
            renewed = await self.credentials.renew(url, remote.credential)
            if renewed is None:
                raise
        return await command(RemoteRepository(url, renewed))
