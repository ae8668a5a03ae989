"""Settings of the gateway, which serves the HTTP API."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.patterns import explained
from sandherd.settings.fields import NONE, Env, Names, Positive

HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
"""The name of a host as in a URL, without a port."""
_LOOPBACK: Final = r"http://(localhost|127\.0\.0\.1)"
_SECURE: Final = r"https://[A-Za-z0-9.-]+"
GatewayUrl = Annotated[
    str,
    StringConstraints(
        pattern=explained(f"^({_LOOPBACK}|{_SECURE})(:[0-9]{{1,5}})?/?$", "a URL such as https://herd.example.com")
    ),
]
Issuer = Annotated[
    str,
    StringConstraints(
        pattern=explained(
            f"^({_LOOPBACK}|{_SECURE})(:[0-9]{{1,5}})?(/[A-Za-z0-9_.~-]+)*/?$",
            "the https URL of an OpenID provider, as in the field issuer of its configuration",
        )
    ),
]
Grant = Annotated[
    str,
    StringConstraints(
        pattern=explained(
            r"^[^,=\x00-\x1f\x7f]{1,200}=[a-z0-9][a-z0-9-]{0,62}:(read|work|approve|operate)$",
            "a group, a project and a role, as engineers=payments:work",
        )
    ),
]
"""A group of users, and the role of its members in one project."""
Scope = Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x2b\x2d-\x5b\x5d-\x7e]{1,100}$")]


class GatewaySettings(BaseModel, defer_build=True):
    """The settings of the gateway. Times are in seconds."""

    gateway_host: Annotated[str, Env("SANDHERD_GATEWAY_HOST")] = "127.0.0.1"
    """The address on which the gateway serves the HTTP API. It has no TLS: outside of this host, put a proxy with TLS
    in front of it."""
    gateway_port: Annotated[int, Env("SANDHERD_GATEWAY_PORT"), Field(ge=0, le=65535)] = 0
    """The port of the HTTP API; 0: the port of the last start if it is free, else any free port."""
    gateway_port_file: Annotated[Path | None, Env("SANDHERD_GATEWAY_PORT_FILE")] = None
    """A file that the actual port of the HTTP API is written to."""
    gateway_hosts: Annotated[frozenset[HostName], Names, Env("SANDHERD_GATEWAY_HOSTS")] = frozenset()
    """Host names of the gateway that clients may use, in addition to those of the loopback. Requests with any other
    `Host` are refused, which prevents DNS rebinding by web pages."""
    gateway_url: Annotated[GatewayUrl | None, Env("SANDHERD_GATEWAY_URL")] = None
    """The URL of the gateway in browsers, such as that of the proxy in front of it. Its host is also one of the
    gateway's names. If it has https, the gateway makes browsers use https only (HSTS)."""
    oidc_issuer: Annotated[Issuer | None, Env("SANDHERD_OIDC_ISSUER")] = None
    """The issuer of an OpenID provider by which users sign in to the pages. The spawner needs this setting, too."""
    oidc_client_id: Annotated[str | None, Env("SANDHERD_OIDC_CLIENT_ID")] = None
    """The id of the gateway at the provider, with the redirect URI `<gateway_url>/api/v1/sign-in/oidc/callback`."""
    oidc_client_secret_file: Annotated[Path | None, Env("SANDHERD_OIDC_CLIENT_SECRET_FILE")] = None
    """A file with the gateway's secret at the OpenID provider, read for each use. If unset, it is a public client."""
    oidc_scopes: Annotated[list[Scope], Names, Env("SANDHERD_OIDC_SCOPES")] = ["openid", "email", "profile"]
    """The scopes that are requested from the OpenID provider."""
    oidc_groups_claim: Annotated[str, Env("SANDHERD_OIDC_GROUPS_CLAIM")] = "groups"
    """The claim of an ID token that lists the groups of a user."""
    oidc_grants: Annotated[list[Grant], Names, NONE, Env("SANDHERD_OIDC_GRANTS")] = []
    """The roles of groups in projects, such as `engineers=payments:work,leads=payments:operate`. A user without any of
    these groups can't sign in. If a user has several roles in a project, the highest applies."""
    gateway_requests_per_second: Annotated[Positive, Env("SANDHERD_GATEWAY_REQUESTS_PER_SECOND")] = 50
    """Maximum rate of requests with one access token, and of requests to sign in from one address, at each replica. A
    burst of two seconds is permitted."""
    gateway_webhook_secrets: Annotated[Path | None, Env("SANDHERD_GATEWAY_WEBHOOK_SECRETS")] = None
    """A folder with a file for each webhook of a forge, whose content is its secret: `ci` is the secret of
    `/webhooks/github/ci`. Files are read for each webhook. If unset, all webhooks are refused."""
