"""Who is to be cut off: sandboxes that publish too much, and users with too many connections. Pure.

Rates are of what the broker has counted per connection, whatever it was: events, output, acknowledgements, requests,
and messages that it refused. So nothing has to be read, and nobody's place in a queue delays the verdict.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sandherd.bus.connections import Connection, User
from sandherd.bus.rate_limit import RateLimiter, rate_of
from sandherd.contracts.principals import Principal

SANDBOXES: Final = frozenset({Principal.WORKER, Principal.JOINER})
PEOPLE: Final = frozenset({Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR})
BURST_SECONDS: Final = 10.0
"""Burst of a sandbox, in seconds of its rate."""
CONNECTION_COST: Final = 50
"""What opening a connection counts as, in messages."""
MOST_CONNECTIONS: Final = {Principal.WORKER: 3, Principal.JOINER: 3}
"""Of one credential: a worker has one, and another while it renews its credential; a joiner has one for a moment."""
MOST_OF_A_SANDBOX: Final = 8

Key = tuple[str, str]
"""`(project, sandbox)`."""


class Excess(StrEnum):
    """What there is too much of."""

    MESSAGES = "messages"
    BYTES = "bytes"
    PROJECT_MESSAGES = "project_messages"
    CONNECTIONS = "connections"
    REPORTED = "reported"
    """What the monitor found, by what it has read."""


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """Messages and bytes per second, and the connections of one person's credential."""

    messages: float
    project_messages: float
    bytes: float
    person_connections: int


@dataclass(frozen=True, slots=True)
class CutOff:
    """A sandbox that is to be ended, all its credentials with it. `users` are those that are connected."""

    key: Key
    excess: Excess
    users: tuple[User, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be done now: sandboxes to cut off, and connections of people to close."""

    cut_offs: tuple[CutOff, ...] = ()
    closed: tuple[Connection, ...] = ()


@dataclass(slots=True)
class _Sent:
    """What a sandbox has sent since the last look."""

    messages: int = 0
    bytes: int = 0
    connections: list[Connection] = field(default_factory=list)


class FloodMeter:
    """Compares each list of connections with the one before it."""

    def __init__(self, limits: FloodLimits) -> None:
        self._limits = limits
        self._messages = RateLimiter(rate_of(limits.messages, BURST_SECONDS))
        self._projects = RateLimiter(rate_of(limits.project_messages, BURST_SECONDS))
        self._bytes = RateLimiter(rate_of(limits.bytes, 60.0))
        self._known: dict[tuple[str, int], tuple[int, int]] | None = None
        """For each connection what it had sent at the last look; None before the first."""

    def judge(self, connections: Sequence[Connection], now: float) -> Judgement:
        """What is too much. `now` is in seconds; what was sent before the first look counts for nobody."""
        sent = self._sent(connections)
        noisy = self._noisy(sent, now)
        crowded = {key: Excess.CONNECTIONS for key, of in sent.items() if _too_many(of.connections)}
        cut_offs = tuple(self._cut_off(key, excess, sent[key]) for key, excess in {**noisy, **crowded}.items())
        return Judgement(cut_offs, tuple(self._surplus(connections)))

    def _sent(self, connections: Iterable[Connection]) -> dict[Key, _Sent]:
        found: defaultdict[Key, _Sent] = defaultdict(_Sent)
        known: dict[tuple[str, int], tuple[int, int]] = {}
        for row in connections:
            known[row.server, row.number] = row.messages, row.bytes
            if row.user.principal not in SANDBOXES:
                continue
            sent = found[row.user.project, row.user.name]
            if row.open:
                sent.connections.append(row)
            if self._known is None:
                continue
            before = self._known.get((row.server, row.number))
            messages, size = before or (-CONNECTION_COST, 0)
            sent.messages += max(0, row.messages - messages)
            sent.bytes += max(0, row.bytes - size)
        self._known = known
        return found

    def _noisy(self, sent: dict[Key, _Sent], now: float) -> dict[Key, Excess]:
        found: dict[Key, Excess] = {}
        totals: Counter[str] = Counter()
        for key, of in sent.items():
            totals[key[0]] += of.messages
            if self._bytes.excess(key, now, of.bytes):
                found[key] = Excess.BYTES
            if self._messages.excess(key, now, of.messages):
                found[key] = Excess.MESSAGES
        for project, total in totals.items():
            if total and self._projects.excess(project, now, total):
                loudest = max((key for key in sent if key[0] == project), key=lambda key: sent[key].messages)
                found.setdefault(loudest, Excess.PROJECT_MESSAGES)
        return found

    def _surplus(self, connections: Iterable[Connection]) -> Iterable[Connection]:
        """The newest connections of people who have too many: the oldest stay."""
        of: defaultdict[str, list[Connection]] = defaultdict(list)
        for row in connections:
            if row.open and row.user.principal in PEOPLE:
                of[row.user.public_key].append(row)
        for rows in of.values():
            yield from sorted(rows, key=lambda row: row.number)[self._limits.person_connections :]

    def _cut_off(self, key: Key, excess: Excess, sent: _Sent) -> CutOff:
        users = tuple({row.user for row in sent.connections})
        return CutOff(key, excess, users, f"the sandbox was cut off: {_told(excess, self._limits)}")


def _too_many(connections: Sequence[Connection]) -> bool:
    of_one = Counter((row.user.public_key, row.user.principal) for row in connections)
    too_many = any(count > MOST_CONNECTIONS[principal] for (_, principal), count in of_one.items())
    return too_many or len(connections) > MOST_OF_A_SANDBOX


def _told(excess: Excess, limits: FloodLimits) -> str:
    match excess:
        case Excess.MESSAGES:
            return f"it published more than {limits.messages:g} messages per second"
        case Excess.BYTES:
            return f"it published more than {limits.bytes / 1024 / 1024:.1f} MiB per second for a minute"
        case Excess.PROJECT_MESSAGES:
            return (
                f"its project published more than {limits.project_messages:g} messages per second, and it most of them"
            )
        case Excess.CONNECTIONS:
            return f"it opened more than {MOST_CONNECTIONS[Principal.WORKER]} connections with one credential"
        case Excess.REPORTED:
            return "the monitor found that it floods the stream"
