"""Where the herd is and who asks: parameter, environment, settings file, the stack's own context file, default."""

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from sandherd.bus.identity.credentials import Bearer, bearer
from sandherd.client.errors import HerdError
from sandherd.client.sources import FROM_CONTEXT, find
from sandherd.contracts.errors import Code
from sandherd.settings import CONFIG_VARIABLE, Loaded, Source

Role = Literal["client", "operator"]

_VARIABLES: Final = (
    "NATS_URL", "SANDHERD_CREDENTIALS", "SANDHERD_PROJECT", "SANDHERD_HOME", "SANDHERD_TOOLCHAINS", CONFIG_VARIABLE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Context:
    """A place to connect to, and as whom."""

    nats_url: str
    credentials: Path | None
    project: str
    home: Path
    toolchains: Path | None = None
    """Where the SDKs of agents are, on a machine with a spawner."""
    services: Mapping[str, str] = field(default_factory=dict)
    """The address of each service's HTTP side, where it is known."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from."""

    @classmethod
    def resolve(
        cls,
        *,
        nats_url: str | None = None,
        credentials: Path | None = None,
        project: str | None = None,
        home: Path | None = None,
        role: Role = "client",
        environ: Mapping[str, str] | None = None,
        config: Path | None = None,
    ) -> Self:
        """Find everything out. Raises `HerdError` for a value that is not allowed or a context file that is broken."""
        given = {"nats_url": nats_url, "credentials": credentials, "project": project, "home": home}
        environ = os.environ if environ is None else environ
        found = find(given, {name: environ[name] for name in _VARIABLES if name in environ}, config, lenient=True)
        loaded, known = found.loaded, found.stack
        stack = {
            "nats_url": known.get("nats_url"),
            "credentials": _stack_credentials(known, role, loaded.settings.project),
        }
        values, sources = _over_weaker(loaded, stack, found.weaker)
        return cls(
            nats_url=values["nats_url"],
            credentials=Path(values["credentials"]) if values["credentials"] else None,
            project=loaded.settings.project,
            home=loaded.settings.home,
            toolchains=loaded.settings.toolchain_dir,
            services=_addresses(known),
            sources=sources,
        )


def _over_weaker(
    loaded: Loaded, stack: Mapping[str, Any], weaker: Container[Source]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What the stack says takes the place of what is weaker only."""
    names = ("nats_url", "credentials", "project", "home")
    values = {name: getattr(loaded.settings, name) for name in names}
    sources = {name: str(loaded.sources[name]) for name in names}
    for name, value in stack.items():
        if value and loaded.sources[name] in weaker:
            values[name], sources[name] = value, FROM_CONTEXT
    return values, sources


def _stack_credentials(known: Mapping[str, Any], role: Role, project: str) -> str | None:
    """The stack's own credential for this role: a person's for the project, else the operator's, who may in all."""
    creds = known.get("creds") or {}
    own = None if role == "operator" else creds.get(f"client-{project}")
    return own or creds.get("operator")


def _addresses(known: Mapping[str, Any]) -> dict[str, str]:
    services = known.get("services") or {}
    return {name: facts["http"] for name, facts in services.items() if isinstance(facts, dict) and facts.get("http")}


def holder(credentials: Path) -> Bearer:
    """Whom a credentials file is for, as its token says. Raises `HerdError` if it is none of a herd's."""
    try:
        return bearer(credentials.read_text())
    except (OSError, ValueError) as error:
        raise HerdError.of(
            Code.REFUSED,
            f"{credentials} is no credentials file of a herd: {error}",
            field="credentials",
            remedy="set SANDHERD_CREDENTIALS to a .creds file, or unset it and start a stack with `sandherd up`",
        ) from None
