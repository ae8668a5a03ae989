"""How a sandbox reaches its repository through the git proxy: variables for git, and a credential for this sandbox.

The credential is derived from the sandbox's name and a key of the herd, so that it is stored nowhere. It is valid until
the sandbox ends: the proxy reads the sandbox's record for each request, and names of sandboxes are never reused.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from sandherd.contracts.specs import SandboxSpec, TaskSpec
from sandherd.settings import Settings

TOKEN: Final = "SANDHERD_GIT_PROXY_TOKEN"  # noqa: S105  # the name of a variable
_PURPOSE: Final = b"sandherd git proxy"
_COUNT_VARIABLE: Final = "GIT_CONFIG_COUNT"
_MAX_COUNT_DIGITS: Final = 9
"""The maximum number of digits of the task's own count; a longer one is ignored."""
_HELPER: Final = f'!give() {{ test "$1" = get && printf "username=sandbox\\npassword=%s\\n" "${TOKEN}"; }}; give'
"""A credential helper (gitcredentials(7)) of the shell's builtin commands: the token is in no argument and no file."""


@dataclass(frozen=True)
class ProxyTokens:
    """The credentials of all sandboxes."""

    key: bytes = field(repr=False)

    @classmethod
    def of(cls, seed: str) -> Self:
        """The credentials under a key that is derived from the seed of one of the spawner's signing keys."""
        return cls(hmac.digest(seed.encode(), _PURPOSE, "sha256"))

    def token(self, project: str, sandbox: str) -> str:
        """The credential of a sandbox."""
        return hmac.digest(self.key, f"{project}/{sandbox}".encode(), "sha256").hex()

    def accepts(self, project: str, sandbox: str, token: str) -> bool:
        """Whether this is the credential of the sandbox."""
        return hmac.compare_digest(self.token(project, sandbox).encode(), token.encode())


@dataclass(frozen=True)
class GitProxyAccess:
    """The proxy's URL, as sandboxes reach it, and the credentials for it."""

    url: str
    tokens: ProxyTokens

    @classmethod
    def of(cls, settings: Settings, seed: str) -> Self | None:
        """The proxy of the settings; None if they have none."""
        return cls(settings.git_proxy_url.rstrip("/"), ProxyTokens.of(seed)) if settings.git_proxy_url else None

    def secrets(self, project: str, sandbox: str) -> Mapping[str, str]:
        """The variable with the credential, which is a secret."""
        return {TOKEN: self.tokens.token(project, sandbox)}

    def variables(self, url: str, env: Mapping[str, str], project: str, sandbox: str) -> Mapping[str, str]:
        """The variables that make git use the proxy in place of this URL. They follow git settings in the task's `env`.

        `origin` and the clone's configuration are not changed.
        """
        settings = {
            f"url.{self.url}/{project}/{sandbox}.insteadOf": url.rstrip("/").removesuffix(".git"),
            f"credential.{self.url}.helper": _HELPER,
        }
        task_count = env.get(_COUNT_VARIABLE, "")
        first = (
            int(task_count)
            if task_count.isascii() and task_count.isdigit() and len(task_count) <= _MAX_COUNT_DIGITS
            else 0
        )
        found = {_COUNT_VARIABLE: str(first + len(settings))}
        for number, (name, value) in enumerate(settings.items(), first):
            found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return found


def repository_url(spec: SandboxSpec) -> str | None:
    """The URL of the repository that a sandbox accesses through the proxy; None if it uses no proxy."""
    if not isinstance(spec, TaskSpec) or spec.repository is None or not spec.repository.git_proxy:
        return None
    return spec.repository.url
