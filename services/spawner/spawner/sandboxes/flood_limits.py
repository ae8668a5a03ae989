"""Detects sandboxes and clients that publish too much, and users with too many connections. Pure.

Rates are computed from the broker's counts per connection, which include all messages: events, output,
acknowledgements, requests, and refused messages. So no message has to be read, and no queue delays the decision.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final

from sandherd.bus.connection_list import BrokerConnection
from sandherd.bus.connection_users import ConnectionUser
from sandherd.bus.rate_limit import RateLimiter, rate_of
from sandherd.contracts.principals import Principal

SANDBOXES: Final = frozenset({Principal.WORKER, Principal.JOINER})
USER_PRINCIPALS: Final = frozenset({Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR})
CHECK_SECONDS: Final = 1.0
"""The time between two checks."""
BURST_SECONDS: Final = 10.0
"""The permitted burst of a sandbox, in seconds at its maximum rate."""
CONNECTION_COST: Final = 50
"""Opening a connection counts as this number of messages."""
MAX_CONNECTIONS: Final = {Principal.WORKER: 3, Principal.JOINER: 3}
"""The maximum for one credential. A worker has one connection, and a second one while it renews its credential."""
MAX_SANDBOX_CONNECTIONS: Final = 8
REVOKED_AFTER: Final = 3
"""The number of checks within `REVOKED_WITHIN` that find too many connections, after which a credential is revoked.
After a shorter excess, such as many commands that were started at once, connections are only closed."""
REVOKED_WITHIN: Final = 60.0
"""The period of `REVOKED_AFTER`, in seconds."""

Key = tuple[str, str]
"""`(project, sandbox)`."""


class ExceededLimit(StrEnum):
    """The limit that was exceeded."""

    MESSAGES = "messages"
    BYTES = "bytes"
    PROJECT_MESSAGES = "project_messages"
    CONNECTIONS = "connections"
    REPORTED = "reported"
    """Reported by the monitor."""


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """Maximum messages and bytes per second, and connections of one user's credential."""

    messages: float
    project_messages: float
    bytes: float
    person_connections: int
    client_messages: float
    """Maximum messages per second of all clients of a project."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """A sandbox to end, whose credentials must all be revoked. `users` are those that have a connection."""

    key: Key
    excess: ExceededLimit
    users: tuple[ConnectionUser, ...]
    error: str


@dataclass(frozen=True, slots=True)
class CredentialAbuse:
    """A user's credential to revoke, and the maximum number of connections that it had at one time."""

    user: ConnectionUser
    connections: int


@dataclass(frozen=True, slots=True)
class FloodResult:
    """The actions to take: sandboxes to cut off, connections to close, and users' credentials to revoke."""

    cut_offs: tuple[CutOff, ...] = ()
    closed: tuple[BrokerConnection, ...] = ()
    abuses: tuple[CredentialAbuse, ...] = ()
    flooded: frozenset[str] = frozenset()
    """Projects whose clients publish too much: some of `closed` are theirs."""


@dataclass(frozen=True, slots=True)
class _Delta:
    """The messages and bytes of a connection since the last check. Opening it counts as `CONNECTION_COST` messages."""

    row: BrokerConnection
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _UserConnections:
    """The connections of a user: the maximum number at one time, and the connections open now, oldest first."""

    user: ConnectionUser
    maximum: int
    open: list[BrokerConnection]


@dataclass(slots=True)
class _SandboxTraffic:
    """The messages and bytes of a sandbox since the last check, and its open connections."""

    messages: int = 0
    bytes: int = 0
    connections: list[BrokerConnection] = field(default_factory=list)


class FloodMeter:
    """Compares each list of connections with the one before it."""

    def __init__(self, limits: FloodLimits) -> None:
        self._limits = limits
        self._messages = RateLimiter(rate_of(limits.messages, BURST_SECONDS))
        self._projects = RateLimiter(rate_of(limits.project_messages, BURST_SECONDS))
        self._bytes = RateLimiter(rate_of(limits.bytes, 60.0))
        self._clients = RateLimiter(rate_of(limits.client_messages, BURST_SECONDS))
        self._excess_history: dict[str, list[tuple[float, int]]] = {}
        """For each public key of a user, when it had too many connections, and how many."""
        self._known: dict[tuple[str, int], tuple[int, int]] | None = None
        """For each connection, the messages and bytes that it had sent at the last check; None before the first."""
        self._checked_at: float | None = None
        """The time of the last check, in seconds; None before the first."""

    def evaluate(
        self, connections: Sequence[BrokerConnection], now: float, over_share: Collection[str] = ()
    ) -> FloodResult:
        """The actions for exceeded limits. `now` is in seconds; messages before the first check are not counted.

        A check may be late: messages that the rate allows during the delay are permitted, too.
        `over_share` are the projects whose waiting commands use too much space.
        """
        since = now if self._checked_at is None else min(now, self._checked_at + CHECK_SECONDS)
        self._checked_at = now
        crowds = self._users_above_limit(row for row in connections if row.open or self._known is not None)
        deltas = self._deltas(connections)
        sent = _by_sandbox(deltas)
        noisy = self._sandboxes_above_rates(sent, since, now)
        crowded = {
            key: ExceededLimit.CONNECTIONS for key, of in sent.items() if _has_too_many_connections(of.connections)
        }
        cut_offs = tuple(self._cut_off(key, excess, sent[key]) for key, excess in {**noisy, **crowded}.items())
        clients = [delta for delta in deltas if delta.row.user.principal is Principal.CLIENT]
        flooding = [*self._flooding_clients(clients, since, now), *_publishing_connections(clients, over_share)]
        surplus = [row for crowd in crowds for row in crowd.open[self._limits.person_connections :]]
        # Closing needs only the broker itself, and no stream, which may respond late while a service is flooded.
        closed = dict.fromkeys((*surplus, *flooding, *_busiest_connections(sent[found.key] for found in cut_offs)))
        flooded = frozenset(row.user.project for row in flooding)
        return FloodResult(cut_offs, tuple(closed), tuple(self._abuses(crowds, now)), flooded)

    def _deltas(self, connections: Iterable[BrokerConnection]) -> list[_Delta]:
        known = self._known
        self._known = {(row.server, row.number): (row.messages, row.bytes) for row in connections}
        return [_delta(row, known) for row in connections]

    def _flooding_clients(self, clients: Sequence[_Delta], since: float, now: float) -> Iterable[BrokerConnection]:
        """The open connections of the credential that published most, in each project whose clients are too fast."""
        of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for delta in clients:
            of[delta.row.user.project][delta.row.user.public_key] += delta.messages
        for project, credentials in of.items():
            total = credentials.total()
            if total and self._clients.excess(project, now, total, since):
                self._clients.drop(project)  # closing the connections is the only action: their counts start again
                loudest = credentials.most_common(1)[0][0]
                yield from (delta.row for delta in clients if delta.row.user.public_key == loudest and delta.row.open)

    def _sandboxes_above_rates(
        self, sent: dict[Key, _SandboxTraffic], since: float, now: float
    ) -> dict[Key, ExceededLimit]:
        found: dict[Key, ExceededLimit] = {}
        totals: Counter[str] = Counter()
        for key, of in sent.items():
            totals[key[0]] += of.messages
            if self._bytes.excess(key, now, of.bytes, since):
                found[key] = ExceededLimit.BYTES
            if self._messages.excess(key, now, of.messages, since):
                found[key] = ExceededLimit.MESSAGES
        for project, total in totals.items():
            if total and self._projects.excess(project, now, total, since):
                loudest = max((key for key in sent if key[0] == project), key=lambda key: sent[key].messages)
                found.setdefault(loudest, ExceededLimit.PROJECT_MESSAGES)
        return found

    def _users_above_limit(self, connections: Iterable[BrokerConnection]) -> list[_UserConnections]:
        """The connections of each user who has too many now, or had since the last check."""
        of: defaultdict[str, list[BrokerConnection]] = defaultdict(list)
        for row in connections:
            if row.user.principal in USER_PRINCIPALS and row.user.public_key:
                of[row.user.public_key].append(row)
        maximum = self._limits.person_connections
        large = (rows for rows in of.values() if len(rows) > maximum)
        return [crowd for crowd in map(_user_connections, large) if crowd.maximum > maximum]

    def _abuses(self, crowds: Iterable[_UserConnections], now: float) -> Iterable[CredentialAbuse]:
        """The credentials that had too many connections at `REVOKED_AFTER` checks within `REVOKED_WITHIN`."""
        since = now - REVOKED_WITHIN
        recent = {key: [row for row in rows if row[0] > since] for key, rows in self._excess_history.items()}
        self._excess_history = {key: rows for key, rows in recent.items() if rows}
        for crowd in crowds:
            found = self._excess_history.setdefault(crowd.user.public_key, [])
            found.append((now, crowd.maximum))
            if len(found) >= REVOKED_AFTER:
                yield CredentialAbuse(crowd.user, max(count for _, count in found))

    def _cut_off(self, key: Key, excess: ExceededLimit, sent: _SandboxTraffic) -> CutOff:
        users = tuple({row.user for row in sent.connections})
        return CutOff(key, excess, users, f"the sandbox was cut off: {_excess_text(excess, self._limits)}")


def _delta(row: BrokerConnection, known: Mapping[tuple[str, int], tuple[int, int]] | None) -> _Delta:
    if known is None:
        return _Delta(row, 0, 0)
    messages, size = known.get((row.server, row.number), (-CONNECTION_COST, 0))
    return _Delta(row, max(0, row.messages - messages), max(0, row.bytes - size))


def _user_connections(rows: Sequence[BrokerConnection]) -> _UserConnections:
    starts = [(row.started, 1) for row in rows]
    ends = [(row.stopped, -1) for row in rows if not row.open]
    counts = accumulate(change for _, change in sorted([*starts, *ends]))  # at the same time, ends come first
    return _UserConnections(
        rows[0].user, max(counts), sorted((row for row in rows if row.open), key=lambda row: row.number)
    )


def _by_sandbox(deltas: Iterable[_Delta]) -> dict[Key, _SandboxTraffic]:
    found: defaultdict[Key, _SandboxTraffic] = defaultdict(_SandboxTraffic)
    for delta in deltas:
        user = delta.row.user
        if user.principal not in SANDBOXES:
            continue
        sent = found[user.project, user.name]
        if delta.row.open:
            sent.connections.append(delta.row)
        sent.messages += delta.messages
        sent.bytes += delta.bytes
    return found


def _busiest_connections(cut: Iterable[_SandboxTraffic]) -> Iterable[BrokerConnection]:
    """The busiest `MAX_SANDBOX_CONNECTIONS` connections of each sandbox; the revocation that follows closes all."""
    for sent in cut:
        yield from sorted(sent.connections, key=lambda row: -row.messages)[:MAX_SANDBOX_CONNECTIONS]


def _publishing_connections(clients: Iterable[_Delta], projects: Collection[str]) -> Iterable[BrokerConnection]:
    """The open connections of these projects' clients that have sent anything since the last check."""
    return (delta.row for delta in clients if delta.row.user.project in projects and delta.messages and delta.row.open)


def _has_too_many_connections(connections: Sequence[BrokerConnection]) -> bool:
    of_one = Counter((row.user.public_key, row.user.principal) for row in connections)
    too_many = any(count > MAX_CONNECTIONS[principal] for (_, principal), count in of_one.items())
    return too_many or len(connections) > MAX_SANDBOX_CONNECTIONS


def _excess_text(excess: ExceededLimit, limits: FloodLimits) -> str:
    match excess:
        case ExceededLimit.MESSAGES:
            return f"it published more than {limits.messages:g} messages per second"
        case ExceededLimit.BYTES:
            return f"it published more than {limits.bytes / 1024 / 1024:.1f} MiB per second for a minute"
        case ExceededLimit.PROJECT_MESSAGES:
            return (
                f"its project published more than {limits.project_messages:g} messages per second, most of them by it"
            )
        case ExceededLimit.CONNECTIONS:
            return f"it opened more than {MAX_CONNECTIONS[Principal.WORKER]} connections with one credential"
        case ExceededLimit.REPORTED:
            return "the monitor found that it floods the stream"
