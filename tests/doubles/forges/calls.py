"""The requests that a forge has received, and counts of them for tests."""

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
    """The path without the prefix of the API, with its percent-encoding."""
    operation: str
    """The operation's id in the forge's document; for git `transport/info-refs`, `…/upload-pack`, `…/receive-pack`."""
    at: datetime
    query: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names are in lower case."""
    raw: bytes = b""
    """The body as it was received by the API."""
    body: Any = None
    principal: str = ""
    """The sender: the login or the installation; empty without a valid token."""
    status: int = 0
    """The status of the response; 0 before it is sent."""

    @property
    def is_write(self) -> bool:
        """Whether the request may change something on the forge."""
        return self.method in _WRITES and not self.operation.startswith("transport/")


class Calls(list[Call]):
    """All requests in order."""

    def number(self, operation: str | None = None) -> int:
        """The number of requests of this operation; of all requests to the API if none is given."""
        if operation is None:
            return sum(not one.operation.startswith("transport/") for one in self)
        return len(self.of(operation))

    def of(self, operation: str) -> list[Call]:
        """The requests of an operation."""
        return [one for one in self if one.operation == operation]

    def by_operation(self) -> Counter[str]:
        """The number of requests of each operation."""
        return Counter(one.operation for one in self)

    def hasty_writes(self, seconds: float = 1.0) -> list[tuple[Call, Call]]:
        """Pairs of successive writes of one principal that are less than this time apart."""
        hasty = []
        for principal in {one.principal for one in self if one.is_write}:
            writes = [one for one in self if one.is_write and one.principal == principal]
            hasty += [(a, b) for a, b in pairwise(writes) if (b.at - a.at).total_seconds() < seconds]
        return hasty
