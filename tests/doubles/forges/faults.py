"""Faults that a test scripts: which requests they hit, and what happens to the request or to its response."""

import asyncio
import re
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.doubles.forges.replies import Reply


class Way(Enum):
    """What happens to a request or to its response."""

    INSTEAD = auto()
    """The request has no effect, and `reply` is sent."""
    DROPPED = auto()
    """The request has no effect, and the connection is closed."""
    LOST = auto()
    """The request takes effect, and the connection is closed without a response."""
    CUT = auto()
    """The request takes effect; half of the body is sent, then the connection is closed."""
    SLOW = auto()
    """The request takes effect; half of the body is sent, and the rest once the test sets `released`."""
    DELAYED = auto()
    """The request waits for `released`, then it takes effect."""
    REPLACED = auto()
    """The request takes effect, and `reply` is sent instead of the response."""


@dataclass
class Fault:
    """One fault. It hits `times` matching requests, after `skip` others."""

    request: str
    """The id of an operation (`pulls/merge`), or a pattern for `METHOD /path`."""
    way: Way
    reply: Reply | None = None
    times: int = 1
    skip: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it hits a request, for tests that wait for it."""
    hits: int = 0

    def takes(self, operation: str, request: str) -> bool:
        """Whether the fault hits this request; each call counts."""
        if operation != self.request and not re.fullmatch(self.request, request):
            return False
        if self.skip or not self.times:
            self.skip = max(0, self.skip - 1)
            return False
        self.times, self.hits = self.times - 1, self.hits + 1
        self.reached.set()
        return True


class Faults:
    """All faults of a forge, in the order in which a test added them."""

    def __init__(self) -> None:
        self._all: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Add a fault, which hits matching requests from now on."""
        self._all.append(fault)
        return fault

    def next(self, operation: str, request: str) -> Fault | None:
        """The first fault that hits this request."""
        return next((one for one in self._all if one.takes(operation, request)), None)

    def release(self) -> None:
        """Let every waiting request continue."""
        for one in self._all:
            one.released.set()

    def unused(self) -> list[Fault]:
        """The faults that hit fewer requests than the test expected."""
        return [one for one in self._all if one.times]


def html(status: int = 502) -> Reply:
    """The HTML page of a proxy in front of the forge, where JSON is expected."""
    page = b"<!DOCTYPE html>\n<html><head><title>Unicorn!</title></head><body><p>We had issues.</p></body></html>"
    return Reply(status, raw=page, content_type="text/html; charset=utf-8")


def huge(size: int, status: int = 200) -> Reply:
    """A JSON body of this many bytes."""
    return Reply(status, raw=b'{"filler": "' + b"x" * (size - 14) + b'"}')


def nested(depth: int, status: int = 200) -> Reply:
    """JSON in which arrays are nested to this depth: recursive parsers fail."""
    return Reply(status, raw=b"[" * depth + b"]" * depth)
