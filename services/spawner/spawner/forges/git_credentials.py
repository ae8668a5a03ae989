"""Credentials for git. They are from a file, for any host, or from the sources of a forge's tokens."""

import asyncio
from pathlib import Path
from typing import Final

from spawner.forges.credentials import NoCredentialError, Token
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError
from spawner.forges.locations import ForgeRepository
from spawner.repositories.credential_file import credential_for, origin_of
from spawner.repositories.git import GitCredential, GitError, GitFault

_RULES_TIMEOUT_SECONDS: Final = 10.0
"""The time that the preparation of a new branch waits for the forge's rules."""


class GitCredentials:
    """A `CredentialSource` of repositories. Methods raise `GitError`."""

    def __init__(self, forges: Forges, file: Path | None) -> None:
        """`file`: a file of git-credential-store(1), which is used before the sources of `forges`."""
        self._forges = forges
        self._file = file

    async def find(self, url: str) -> GitCredential | None:
        """The credential for a repository; None if there is none, as for a public repository."""
        stored = credential_for(origin_of(url), self._file)
        if stored is not None:
            return stored
        try:
            repository = self._forges.repository(url)
            return None if repository is None else await self._git_credential(repository)
        except NoCredentialError:
            return None
        except ForgeError as error:
            failure = GitError(GitFault(error.fault.value), str(error))
        raise failure

    async def renew(self, url: str, refused: GitCredential) -> GitCredential | None:
        """A credential in place of the refused one, such as a new token after a revocation; None if there is none."""
        try:
            repository = self._forges.repository(url)
            if repository is not None:
                tokens = self._forges.credentials(repository.host).tokens
                await tokens.renew(repository, Token(refused.password))
        except NoCredentialError:
            return None
        except ForgeError as error:
            raise GitError(GitFault(error.fault.value), str(error)) from None
        credential = await self.find(url)
        return None if credential is None or credential.password == refused.password else credential

    async def protects(self, url: str, branch: str) -> bool:
        """Whether the forge is known to protect this branch.

        It is not known without a credential, or if the forge does not respond in time. A protected branch is then found
        when the forge refuses its push.
        """
        try:
            repository = self._forges.repository(url)
            if repository is None:
                return False
            async with asyncio.timeout(_RULES_TIMEOUT_SECONDS):
                return await self._forges.of(repository).branch_protected(branch)
        except (ForgeError, TimeoutError):
            return False

    async def _git_credential(self, repository: ForgeRepository) -> GitCredential:
        return await self._forges.credentials(repository.host).git_credential(repository)
