"""The requests that a forge received, and what tests count of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass
class Call:
    """A request."""

    method: str
    path: str
    """Without the prefix of the API, and with its percent-encoding."""
    operation: str
    """Its id in the forge's document; for git `transport/info-refs`, `…/upload-pack`, `…/receive-pack`."""
    at: datetime
    query: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names are in lower case."""
    raw: bytes = b""
    """The body as it was received by the API."""
    body: Any = None
    principal: str = ""
    """Who sent it: the login, or the installation; empty without a valid token."""
    status: int = 0
    """What was sent; 0 while nothing was."""

    @property
    def is_write(self) -> bool:
        """Whether it may change something on the forge."""
        return self.method in _WRITES and not self.operation.startswith("transport/")


class Calls(list[Call]):
    """All requests in their order."""

    def number(self, operation: str | None = None) -> int:
        """How many requests were of this operation; all requests to the API without one."""
        if operation is None:
            return sum(not one.operation.startswith("transport/") for one in self)
        return len(self.of(operation))

    def of(self, operation: str) -> list[Call]:
        """The requests of an operation."""
        return [one for one in self if one.operation == operation]

    def by_operation(self) -> Counter[str]:
        """How many requests each operation had."""
        return Counter(one.operation for one in self)

    def hasty_writes(self, seconds: float = 1.0) -> list[tuple[Call, Call]]:
        """Pairs of successive writes of the same principal with less than this time between them."""
        hasty = []
        for principal in {one.principal for one in self if one.is_write}:
            writes = [one for one in self if one.is_write and one.principal == principal]
            hasty += [(a, b) for a, b in pairwise(writes) if (b.at - a.at).total_seconds() < seconds]
        return hasty
