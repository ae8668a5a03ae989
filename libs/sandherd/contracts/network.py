"""What a sandbox of the process runtime can reach over the network, as set in settings and profiles."""

import ipaddress
import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from sandherd.contracts.model import Model

NetworkMode = Literal["internet", "allow", "none", "host"]
"""What a sandbox can reach. `internet`: public addresses; `allow`: listed public addresses; `none`: no public
addresses; `host`: everything that the host can reach, without a network namespace. The broker and declared endpoints
can be reached in all modes."""

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME_LENGTH: Final = 253
_LAST_PORT: Final = 65_535


def split_destination(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `address` or `[address]:port`. Raises `ValueError`.

    A host is a name, an address, or `*.` before a name for every name below it. A port of None stands for every port.
    """
    text = text.strip()
    if address := _address(text):
        return address, None
    host, colon, port = text.rpartition(":")
    if not colon:
        return _host(text), None
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= _LAST_PORT:
        raise ValueError(f"{text!r} has no valid port: write host:port, and an IPv6 address in brackets")
    return _host(host), int(port)


def _host(text: str) -> str:
    if address := _address(text.removeprefix("[").removesuffix("]")):
        return address
    name = text.lower().rstrip(".")
    labels = name.removeprefix("*.").split(".")
    if len(name) > _MAX_NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise ValueError(f"{text!r} is neither a host name nor an address")
    return name


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _destination(text: str) -> str:
    split_destination(text)
    return text.strip()


def _endpoint(text: str) -> str:
    host, port = split_destination(text)
    if port is None or host.startswith("*."):
        raise ValueError(f"{text!r} has to be one host with a port, such as 127.0.0.1:11434 or db.internal:5432")
    return text.strip()


def _network(text: str) -> str:
    return str(ipaddress.ip_network(text.strip()))


def _network_or_destination(text: str) -> str:
    return _network(text) if "/" in text else _destination(text)


Endpoint = Annotated[str, AfterValidator(_endpoint)]
"""A host with a port, such as `127.0.0.1:11434`, `db.internal:5432` or `[fd00::7]:5432`."""
Allowed = Annotated[str, AfterValidator(_network_or_destination)]
"""A public host, with or without a port (`github.com:443`, `*.example.org`), or a network (`140.82.112.0/20`)."""
DeniedNetwork = Annotated[str, AfterValidator(_network)]
"""A network, such as `198.51.100.0/24`."""


class SandboxNetwork(Model):
    """The network of a profile's sandboxes. Omitted fields are taken from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: NetworkMode | None = None
    allow: tuple[Allowed, ...] | None = Field(default=None, exclude_if=lambda hosts: hosts is None)
    """The only public hosts that can be reached in mode `allow`."""
    endpoints: tuple[Endpoint, ...] | None = Field(default=None, exclude_if=lambda hosts: hosts is None)
    """Endpoints that can be reached in addition to the broker, also at private addresses and on the host's loopback."""
