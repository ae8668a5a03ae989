"""Settings of the gateway, which serves the HTTP API."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from sandherd.settings.fields import Env, Names, Positive

HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
"""The name of a host, as clients write it into a URL, without a port."""


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
    gateway_requests_per_second: Annotated[Positive, Env("SANDHERD_GATEWAY_REQUESTS_PER_SECOND")] = 50
    """Maximum rate of the requests with one access token, at one replica; a burst of two seconds is permitted."""
    gateway_webhook_secrets: Annotated[Path | None, Env("SANDHERD_GATEWAY_WEBHOOK_SECRETS")] = None
    """A folder with a file for each webhook of a forge, whose content is its secret: `ci` is the secret of
    `/webhooks/github/ci`. Files are read for each webhook. If unset, all are refused."""
