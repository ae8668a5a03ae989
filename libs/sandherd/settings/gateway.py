"""Settings of the gateway, which serves the HTTP API."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.patterns import explained
from sandherd.settings.fields import NONE, Env, Names, Positive

HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
"""The name of a host, as clients write it into a URL, without a port."""
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
"""What the members of a group may do."""
Scope = Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x2b\x2d-\x5b\x5d-\x7e]{1,100}$")]


class GatewaySettings(BaseModel):
    """The settings of the gateway. Times are in seconds."""

    gateway_host: Annotated[str, Env("SANDHERD_GATEWAY_HOST")] = "127.0.0.1"
    """The address on which the gateway serves the HTTP API. It has no TLS: outside of this host, put a proxy with TLS
    in front of it."""
    gateway_port: Annotated[int, Env("SANDHERD_GATEWAY_PORT"), Field(ge=0, le=65535)] = 0
    """The port of the HTTP API; 0: that of the last start if it is free, else any free port."""
    gateway_port_file: Annotated[Path | None, Env("SANDHERD_GATEWAY_PORT_FILE")] = None
    """A file that the actual port of the HTTP API is written to."""
    gateway_hosts: Annotated[frozenset[HostName], Names, Env("SANDHERD_GATEWAY_HOSTS")] = frozenset()
    """Names of the gateway that clients may use, in addition to those of the loopback: requests for any other host are
    refused, so that no web page reaches the API by a name of its own."""
    gateway_url: Annotated[GatewayUrl | None, Env("SANDHERD_GATEWAY_URL")] = None
    """The address of the gateway in browsers, which is that of the proxy in front of it; its host is one of
    the gateway's names. With https, browsers then use https only (HSTS)."""
    oidc_issuer: Annotated[Issuer | None, Env("SANDHERD_OIDC_ISSUER")] = None
    """The issuer of an OpenID provider by which users sign in to the pages. The spawner needs it, too."""
    oidc_client_id: Annotated[str | None, Env("SANDHERD_OIDC_CLIENT_ID")] = None
    """The id of the gateway at the provider, with the redirect URI `<gateway_url>/api/v1/sign-in/oidc/callback`."""
    oidc_client_secret_file: Annotated[Path | None, Env("SANDHERD_OIDC_CLIENT_SECRET_FILE")] = None
    """A file with the gateway's secret at the OpenID provider; without one it is a public client. Read for each use."""
    oidc_scopes: Annotated[list[Scope], Names, Env("SANDHERD_OIDC_SCOPES")] = ["openid", "email", "profile"]
    """What is requested of the OpenID provider."""
    oidc_groups_claim: Annotated[str, Env("SANDHERD_OIDC_GROUPS_CLAIM")] = "groups"
    """The claim of an ID token that lists the groups of a user."""
    oidc_grants: Annotated[list[Grant], Names, NONE, Env("SANDHERD_OIDC_GRANTS")] = []
    """What the members of groups may do, such as `engineers=payments:work,leads=payments:operate`. A user without any
    of these groups can't sign in; of several roles in a project the highest applies."""
    gateway_requests_per_second: Annotated[Positive, Env("SANDHERD_GATEWAY_REQUESTS_PER_SECOND")] = 50
    """Maximum rate of the requests with one access token, at one replica, and of those to sign in from one address; a
    burst of two seconds is permitted."""
    gateway_webhook_secrets: Annotated[Path | None, Env("SANDHERD_GATEWAY_WEBHOOK_SECRETS")] = None
    """A folder with a file for each webhook of a forge, whose content is its secret: `ci` is the secret of
    `/webhooks/github/ci`. Files are read for each webhook. If unset, all are refused."""
