"""The broker's accounts, and the few subjects that pass between them: derived from the permissions and the tables.

The broker checks what a user publishes and subscribes to, but not the reply subject of a message, and not the subjects
named in the body of a request to JetStream: whatever the broker or a service publishes in answer goes there with the
rights of whoever answers. So only those who are trusted with the streams share an account with them. What passes
between accounts passes by name, and a reply comes back to the requester's own account, where it is delivered to that
account's own subscriptions and never forwarded through another import (tests/integration/bus). Only the replies of the
system account are: to what the requester's account may publish anyway.

    HERD                                  the streams and the buckets, the spawner, and whoever changes streams
    EVENT_INGEST, MONITOR, MESSAGE_RELAY  one service each
    PROVISIONER                           whoever creates streams
    STORE_GUARD                           whoever checks whether nats-server stores
    SANDBOXES                             workers and joiners
    PEOPLE                                clients, subscribers and operators
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.bus.account_names import Account, account_of
from sandherd.bus.permissions import SERVICES, for_service, live_of
from sandherd.bus.setup_permissions import PROBING, for_provisioner
from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import TABLE, Mood, Principal, Subject, covers
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED

__all__ = ["Account", "account_of", "exports", "imports"]

_SERVED: Final = {account_of(service): service for service in SERVICES if account_of(service) is not Account.HERD}
"""The one service of each service's account."""
_HEARD_LIVE: Final = frozenset({Mood.EVENT, Mood.OUTPUT})
"""Moods that people hear as they are said; what they ask for comes as a reply."""
_ANSWERED: Final = frozenset({Mood.DELIVERY, Mood.REQUEST})
"""Moods whose hearer answers."""
_EXAMINED: Final = ".examine"
"""Requests that whoever backs up asks from the account of the streams, to see whether a service is at work."""


def exports(account: Account) -> list[dict[str, Any]]:
    """What others may reach in this account, as its claims say it."""
    reached = [entry for other in Account if other is not account for entry in _reached(other) if entry[1] is account]
    services = [_exported(subject) for subject, _, _ in reached]
    streams: list[dict[str, Any]] = []
    if account is Account.HERD:
        live = [live_subject(row.pattern()) for row in _heard_by_people()]
        streams = [{"name": subject, "subject": subject, "type": "stream"} for subject in live]
    return [*_widest(services), *streams]


def imports(account: Account, keys: Mapping[Account, str]) -> list[dict[str, Any]]:
    """What this account reaches in others, as its claims say it. `keys` are the accounts' public keys."""
    found = [
        {"name": subject, "subject": subject, "type": "service", "account": keys[target]}
        | ({"local_subject": _referring(local)} if local != subject else {})
        for subject, target, local in _reached(account)
    ]
    return [*_widest(found), *_told_in(account, keys[Account.HERD])]


_Reached = tuple[str, Account, str]
"""A subject, the account that it is in, and what it is called by who reaches it."""


@cache
def _reached(account: Account) -> tuple[_Reached, ...]:
    """What the users of an account reach in other accounts, by publishing."""
    return tuple(_all_reached(account))


def _all_reached(account: Account) -> Iterator[_Reached]:
    if account is Account.HERD:
        yield from _asked_by(Principal.SPAWNER)
        rows = [row for row in TABLE if row.name.endswith(_EXAMINED)]
        yield from ((row.pattern(), home, row.pattern()) for row in rows for home in _homes(row) if home in _SERVED)
    elif account in _SERVED:
        yield from _reached_by(_SERVED[account])
    elif account is Account.PROVISIONER:
        yield from ((_in_herd(local), Account.HERD, local) for local in for_provisioner().publish)
    elif account is Account.STORE_GUARD:
        yield from ((subject, Account.HERD, subject) for subject in PROBING.publish)
    else:
        said = [row for row in TABLE if any(account_of(principal) is account for principal in row.producers)]
        yield from ((row.pattern(), home, row.pattern()) for row in said for home in _homes(row))
        if account is Account.PEOPLE:
            yield from ((subject, Account.HERD, local) for subject, local in _taking())


def _reached_by(service: Principal) -> Iterator[_Reached]:
    """All that a service may publish, subject for subject: what is not in the table is the streams' account's."""
    asked = dict.fromkeys(_asked_by(service))
    yield from asked
    others = {subject for subject, _, _ in asked}
    for local in for_service(service).publish:
        if local not in others:
            yield _in_herd(local), Account.HERD, local


def _in_herd(local: str) -> str:
    """What a subject of the JetStream API is called in the account of the streams."""
    return local.replace(api.API_FROM_OUTSIDE, api.API, 1)


def _asked_by(service: Principal) -> Iterator[_Reached]:
    """What a service asks of somebody in another account, and waits for the answer to."""
    for row in TABLE:
        if service in row.producers and row.mood in _ANSWERED:
            for home in _homes(row):
                if home is not account_of(service):
                    yield row.pattern(), home, row.pattern()


def _homes(row: Subject) -> list[Account]:
    """The accounts in which a row of the table is received: the streams', or those of whoever answers."""
    if row.mood not in _ANSWERED:
        return [Account.HERD]
    return list(dict.fromkeys(account_of(principal) for principal in sorted(row.consumers)))


def _heard_by_people() -> list[Subject]:
    return [
        row
        for row in TABLE
        if row.mood in _HEARD_LIVE and any(account_of(principal) is Account.PEOPLE for principal in row.consumers)
    ]


def _taking() -> Iterator[tuple[str, str]]:
    """Taking events from durable consumers, and acknowledging them: each subject here, and where people are.

    A user's permissions say from which consumers.
    """
    here, outside = api.consuming(SUBSCRIBED, "*"), api.consuming(SUBSCRIBED, "*", api.API_FROM_OUTSIDE)
    return zip(here, outside, strict=True)


def _exported(subject: str) -> dict[str, Any]:
    """Consumers and batched reads give many answers to one request; all of them go to the requester's own account."""
    entry: dict[str, Any] = {"name": subject, "subject": subject, "type": "service"}
    many = subject.startswith(("$JS.ACK.", f"{api.API}.CONSUMER.", f"{api.API}.DIRECT.GET."))
    return entry | ({"response_type": "Stream"} if many else {})


def _told_in(account: Account, herd: str) -> Iterator[dict[str, Any]]:
    """What is stored is republished on a subject of its own; subscribers receive it under the original subject.

    The broker hands on to a third account nothing that came from a second one; and so they hear what is kept, once.
    """
    followed = live_of(_SERVED[account]) if account in _SERVED else ()
    for row in _heard_by_people():
        live = live_subject(row.pattern())
        entry = {"name": row.name, "subject": live, "type": "stream", "account": herd}
        if account is Account.PEOPLE:
            yield entry | {"local_subject": _referring(row.pattern())}
        elif any(covers(pattern, live) for pattern in followed):
            yield entry


def _referring(pattern: str) -> str:
    """A pattern whose wildcards are those of the subject that is imported, in order."""
    places = itertools.count(1)
    return ".".join(f"${next(places)}" if part == "*" else part for part in pattern.split("."))


def _widest(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each entry once, without those that another covers: the broker refuses an account with overlapping ones."""
    unique = {entry["subject"]: entry for entry in entries}
    return [unique[subject] for subject in _uncovered(tuple(unique))]


@cache
def _uncovered(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """The subjects that no other one covers; the same few tables are asked for whenever a broker is begun."""
    wide = [subject for subject in subjects if "*" in subject or subject.endswith(">")]
    return tuple(
        subject for subject in subjects if not any(other != subject and _contains(other, subject) for other in wide)
    )


def _contains(wide: str, narrow: str) -> bool:
    """Whether all subjects of one pattern are subjects of another."""
    wanted, given = wide.split("."), narrow.split(".")
    if wanted[-1] == ">":
        return len(given) >= len(wanted) and _matching(wanted[:-1], given)
    return given[-1] != ">" and len(wanted) == len(given) and _matching(wanted, given)


def _matching(wanted: list[str], given: list[str]) -> bool:
    return all(want in {"*", token} for want, token in zip(wanted, given, strict=False))
