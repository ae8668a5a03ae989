"""Building blocks of settings: the variable of each, and types that several of them share."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema


@dataclass(frozen=True)
class Alias:
    """Another variable of a setting, which its own takes precedence over."""

    name: str
    convert: Callable[[str], str] = str
    """Converts a value of that variable to one of the setting's own; empty: the setting has none for it."""


@dataclass(frozen=True)
class Env:
    """The environment variable of a setting; `secret` values are never shown."""

    name: str
    secret: bool = False
    aliases: tuple[Alias, ...] = ()


DISK: Final = "SANDBOX_DISK_GB"
"""The usual name of the disk size of a sandbox, whatever its runtime."""
_MB_PER_GB: Final = 1024
MAX_FILE_MIB: Final = 1024
"""The largest value of SANDHERD_MAX_FILE_MB: no herd accepts a larger file."""


def in_megabytes(text: str) -> str:
    """A number of GB in MB; another text as it is, so that the setting refuses it."""
    try:
        return str(math.ceil(float(text) * _MB_PER_GB))
    except (ValueError, OverflowError):
        return text


def whole(text: str) -> str:
    """A number, rounded up; another text as it is."""
    try:
        return str(math.ceil(float(text)))
    except (ValueError, OverflowError):
        return text


def within(minimum: float, maximum: float) -> Callable[[str], str]:
    """A conversion to nothing for a number outside this range: another runtime's setting may allow it."""

    def convert(text: str) -> str:
        try:
            return text if minimum <= float(text) <= maximum else ""
        except ValueError:
            return text

    return convert


Positive = Annotated[float, Field(gt=0)]
Limit = Annotated[int, Field(ge=0)] | None
OWN_RUNTIMES: Final = ("process", "docker", "daytona", "remote", "kubernetes")
"""The runtimes that are part of Sandherd; plugins add further ones, which only the spawner knows."""
Names = BeforeValidator(lambda value: [name.strip() for name in value.split(",")] if isinstance(value, str) else value)
"""Accepts names also as one text, separated by commas."""
NONE: Final = BeforeValidator(lambda value: [] if value in ("none", "") else value)
"""Accepts `none` and an empty text for no names, where the default has some."""

_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP: Final = "[0-9a-fA-F]{1,4}"


def _shortened(before: int) -> str:
    """IPv6 addresses with `::` behind this number of groups: it stands for one group or more."""
    begin = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
    after = 7 - before
    rest = [f"({_GROUP}:){{0,{after - 1}}}{_GROUP}"] if after else []
    rest += [f"({_GROUP}:){{0,{after - 2}}}{_IPV4}"] if after > 1 else []
    return f"{begin}::({'|'.join(rest)})?" if rest else f"{begin}::"


_IPV6: Final = "|".join(
    [f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}:){{6}}{_IPV4}", *(_shortened(before) for before in range(8))]
)
NETWORK: Final = rf"({_IPV4}(/(3[0-2]|[12]?[0-9]))?|({_IPV6})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
"""The form of an address or a network, for schemas. That it has no host bits is checked by `ipaddress`, and for IPv4 by
the chart."""


def schema_of(pattern: str) -> WithJsonSchema:
    """The form of a text in schemas, such as that of the chart's values, if Python code validates it."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


_BROKER: Final = re.compile(r"(nats|tls|ws|wss)://([^@/\s]*@)?[^@/?#\s]+/?")


def _is_broker(address: str) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises for an invalid port
    except ValueError:
        return False
    return bool(_BROKER.fullmatch(address) and address.isprintable() and parts.hostname)


def _brokers(text: str) -> str:
    if not all(_is_broker(address.strip()) for address in text.split(",")):
        raise ValueError("it has to be nats://, tls://, ws:// or wss:// with a host, or several separated by commas")
    return text


def _with_scheme(text: object) -> object:
    """`host:port` means `nats://host:port`, as for the NATS tools."""
    if not isinstance(text, str):
        return text
    return ",".join(address if "://" in address else f"nats://{address.strip()}" for address in text.split(","))


BrokerAddress = Annotated[str, AfterValidator(_brokers)]
"""The URL of a broker, or of several servers, separated by commas. A refused value is not repeated: it may be secret.
"""
AnyBrokerAddress = Annotated[str, BeforeValidator(_with_scheme), AfterValidator(_brokers)]
"""A `BrokerAddress` whose scheme may be omitted."""
