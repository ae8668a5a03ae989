"""What settings are made of: the variable of each, and the kinds of values that several of them have."""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field


@dataclass(frozen=True)
class Env:
    """The environment variable of a setting; `secret` values are never shown."""

    name: str
    secret: bool = False


Positive = Annotated[float, Field(gt=0)]
Limit = Annotated[int, Field(ge=0)] | None
RuntimeName = Literal["process", "docker", "daytona", "remote", "kubernetes"]
Names = BeforeValidator(lambda given: [name.strip() for name in given.split(",")] if isinstance(given, str) else given)
"""A text of names between commas stands for all of them."""

_BROKER: Final = re.compile(r"(nats|tls|ws|wss)://([^@/\s]*@)?[^@/?#\s]+/?")


def _brokers(text: str) -> str:
    if not all(_BROKER.fullmatch(address.strip()) for address in text.split(",")):
        raise ValueError("it has to be nats://, tls://, ws:// or wss:// with a host, or several between commas")
    return text


BrokerAddress = Annotated[str, AfterValidator(_brokers)]
"""Where a broker is; several servers are separated by commas. What is refused is not repeated: it may hold a secret."""
