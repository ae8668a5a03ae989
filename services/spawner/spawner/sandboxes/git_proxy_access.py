"""How a sandbox reaches its repository by the git proxy: variables for git, and a credential of this sandbox alone.

The credential is derived from its name and a key of the herd, so that it is stored nowhere. It ends with the sandbox:
the proxy reads its record for each request, and names of sandboxes are never reused.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from sandherd.contracts.specs import SandboxSpec, TaskSpec
from sandherd.settings import Settings

TOKEN: Final = "SANDHERD_GIT_PROXY_TOKEN"  # noqa: S105  # the name of a variable
_PURPOSE: Final = b"sandherd git proxy"
_COUNT: Final = "GIT_CONFIG_COUNT"
_DIGITS: Final = 9
"""More than git accepts as a count."""
_HELPER: Final = f'!give() {{ test "$1" = get && printf "username=sandbox\\npassword=%s\\n" "${TOKEN}"; }}; give'
"""A credential helper (gitcredentials(7)) of the shell's own commands: the token is in no argument and no file."""


@dataclass(frozen=True)
class ProxyTokens:
    """The credentials of all sandboxes."""

    key: bytes = field(repr=False)

    @classmethod
    def of(cls, seed: str) -> Self:
        """With a key that is derived from the seed of one of the spawner's signing keys."""
        return cls(hmac.digest(seed.encode(), _PURPOSE, "sha256"))

    def token(self, project: str, sandbox: str) -> str:
        """The credential of a sandbox."""
        return hmac.digest(self.key, f"{project}/{sandbox}".encode(), "sha256").hex()

    def accepts(self, project: str, sandbox: str, token: str) -> bool:
        """Whether this is the credential of the sandbox."""
        return hmac.compare_digest(self.token(project, sandbox).encode(), token.encode())


@dataclass(frozen=True)
class GitProxyAccess:
    """The proxy as sandboxes reach it."""

    url: str
    tokens: ProxyTokens

    @classmethod
    def of(cls, settings: Settings, seed: str) -> Self | None:
        """From the settings; None: there is no proxy."""
        return cls(settings.git_proxy_url.rstrip("/"), ProxyTokens.of(seed)) if settings.git_proxy_url else None

    def secrets(self, project: str, sandbox: str) -> Mapping[str, str]:
        """The variable that is a secret."""
        return {TOKEN: self.tokens.token(project, sandbox)}

    def variables(self, url: str, env: Mapping[str, str], project: str, sandbox: str) -> Mapping[str, str]:
        """The variables that have git use the proxy in place of this URL, after the settings in the task's own `env`.

        `origin` and the clone's configuration stay as they are.
        """
        settings = {
            f"url.{self.url}/{project}/{sandbox}.insteadOf": url.rstrip("/").removesuffix(".git"),
            f"credential.{self.url}.helper": _HELPER,
        }
        own = env.get(_COUNT, "")
        first = int(own) if own.isascii() and own.isdigit() and len(own) <= _DIGITS else 0
        found = {_COUNT: str(first + len(settings))}
        for number, (name, value) in enumerate(settings.items(), first):
            found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return found


def repository_url(spec: SandboxSpec) -> str | None:
    """The URL of the repository that a sandbox uses by the proxy; None: it uses none."""
    if not isinstance(spec, TaskSpec) or spec.repository is None or not spec.repository.git_proxy:
        return None
    return spec.repository.url
