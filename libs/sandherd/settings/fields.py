"""Building blocks of settings: their environment variables, and types that several settings share."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema


@dataclass(frozen=True)
class Alias:
    """A further environment variable of a setting. The setting's own variable takes precedence over it."""

    name: str
    convert: Callable[[str], str] = str
    """Converts the variable's text to a text that the setting accepts. The variable is ignored if that is empty."""


@dataclass(frozen=True)
class Env:
    """The environment variable of a setting. With `secret`, the value is never shown."""

    name: str
    secret: bool = False
    aliases: tuple[Alias, ...] = ()


DISK: Final = "SANDBOX_DISK_GB"
"""The variable with the disk size of a sandbox for every runtime, as an alias of the runtimes' own variables."""
_MB_PER_GB: Final = 1024
MAX_FILE_MIB: Final = 1024
"""The largest value of SANDHERD_MAX_FILE_MB: no herd accepts a larger file."""


def in_megabytes(text: str) -> str:
    """A number of GB as a number of MB. Any other text is returned unchanged, so that the setting refuses it."""
    try:
        return str(math.ceil(float(text) * _MB_PER_GB))
    except (ValueError, OverflowError):
        return text


def rounded_up(text: str) -> str:
    """A number, rounded up. Any other text is returned unchanged, so that the setting refuses it."""
    try:
        return str(math.ceil(float(text)))
    except (ValueError, OverflowError):
        return text


def within(minimum: float, maximum: float) -> Callable[[str], str]:
    """A function that returns an empty text for a number outside this range, and any other text unchanged.

    So the variable is ignored if only the setting of another runtime may have this number.
    """

    def convert(text: str) -> str:
        try:
            return text if minimum <= float(text) <= maximum else ""
        except ValueError:
            return text

    return convert


Positive = Annotated[float, Field(gt=0)]
Limit = Annotated[int, Field(ge=0)] | None
OWN_RUNTIMES: Final = ("process", "docker", "daytona", "remote", "kubernetes")
"""The runtimes that are part of Sandherd. Plugins add others, which only the spawner knows."""
Names = BeforeValidator(lambda value: [name.strip() for name in value.split(",")] if isinstance(value, str) else value)
"""Accepts names also as a text in which commas separate them."""
NONE: Final = BeforeValidator(lambda value: [] if value in ("none", "") else value)
"""Accepts `none` and an empty text as an empty list, for settings whose default is not empty."""

_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP: Final = "[0-9a-fA-F]{1,4}"


def _shortened(before: int) -> str:
    """The pattern of IPv6 addresses with `::` after this number of groups; `::` stands for one group or more."""
    begin = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
    after = 7 - before
    rest = [f"({_GROUP}:){{0,{after - 1}}}{_GROUP}"] if after else []
    rest += [f"({_GROUP}:){{0,{after - 2}}}{_IPV4}"] if after > 1 else []
    return f"{begin}::({'|'.join(rest)})?" if rest else f"{begin}::"


_IPV6: Final = "|".join(
    [f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}:){{6}}{_IPV4}", *(_shortened(before) for before in range(8))]
)
NETWORK: Final = rf"({_IPV4}(/(3[0-2]|[12]?[0-9]))?|({_IPV6})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
"""The pattern of an address or a network, for schemas. It allows host bits. `ipaddress` refuses them, and the chart
does for IPv4."""


def schema_of(pattern: str) -> WithJsonSchema:
    """The JSON Schema of a text that Python code validates, for example in the schema of the chart's values."""
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
    """The text, in which `host:port` is replaced by `nats://host:port`, as in the NATS tools."""
    if not isinstance(text, str):
        return text
    return ",".join(address if "://" in address else f"nats://{address.strip()}" for address in text.split(","))


BrokerAddress = Annotated[str, AfterValidator(_brokers)]
"""The URL of a broker, or of several servers, separated by commas. Errors do not show it, as it may have a secret."""
AnyBrokerAddress = Annotated[str, BeforeValidator(_with_scheme), AfterValidator(_brokers)]
"""A `BrokerAddress` whose scheme may be omitted."""
