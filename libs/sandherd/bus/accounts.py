"""Three accounts, and the few subjects that pass between them: derived from the subject table.

The broker checks what a user publishes and subscribes to, but not the reply subject that it puts on a message: an
acknowledgement of JetStream, or a service's answer, would go wherever a sandbox sends it, with the rights of whoever
answers. So nobody who is not trusted shares an account with the streams. What passes between accounts passes by name,
and a reply comes back to the asker's own account, where it can do nothing.

    SANDBOXES   workers and joiners
    PEOPLE      clients, subscribers and operators
    HERD        the services, the streams and the buckets
"""

import itertools
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import TABLE, Mood, Principal, Subject
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED


class Account(StrEnum):
    """Where a principal lives."""

    HERD = "HERD"
    SANDBOXES = "SANDBOXES"
    PEOPLE = "PEOPLE"


_HOMES: Final = {
    Principal.WORKER: Account.SANDBOXES,
    Principal.JOINER: Account.SANDBOXES,
    Principal.CLIENT: Account.PEOPLE,
    Principal.SUBSCRIBER: Account.PEOPLE,
    Principal.OPERATOR: Account.PEOPLE,
}
_OUTER: Final = (Account.SANDBOXES, Account.PEOPLE)
_HEARD_LIVE: Final = frozenset({Mood.EVENT, Mood.OUTPUT})
"""Moods that people hear as they are said; what they ask for comes as a reply."""
_ANSWERED: Final = frozenset({Mood.DELIVERY, Mood.REQUEST})
"""Moods whose hearer answers; in an outer account that is a sandbox's worker."""


def account_of(principal: Principal) -> Account:
    """The account of a principal; a service's is HERD."""
    return _HOMES.get(principal, Account.HERD)


def exports(account: Account) -> list[dict[str, Any]]:
    """What others may reach in this account, as its claims say it."""
    if account is Account.HERD:
        asked = [_entry(row, "service") for outer in _OUTER for row in _said_in(outer)]
        told = [
            {"name": row.name, "subject": live_subject(row.pattern()), "type": "stream"} for row in _heard_by_people()
        ]
        taken = [_many_answers(subject) for subject, _ in _taking()]
        return [*_unique(asked), *taken, *told]
    return [_entry(row, "service") for row in _asked_of(account)]


def imports(account: Account, keys: Mapping[Account, str]) -> list[dict[str, Any]]:
    """What this account reaches in others, as its claims say it. `keys` are the accounts' public keys."""
    if account is Account.HERD:
        return [_entry(row, "service", keys[outer]) for outer in _OUTER for row in _asked_of(outer)]
    found = [_entry(row, "service", keys[Account.HERD]) for row in _said_in(account)]
    if account is Account.PEOPLE:
        found += [_taken_from(subject, local, keys[Account.HERD]) for subject, local in _taking()]
        found += [_told(row, keys[Account.HERD]) for row in _heard_by_people()]
    return found


def _said_in(account: Account) -> list[Subject]:
    """What is said in an outer account and meant for the herd."""
    return [row for row in TABLE if any(account_of(principal) is account for principal in row.producers)]


def _asked_of(account: Account) -> list[Subject]:
    """What the herd says to somebody in an outer account, and waits for the answer to."""
    return [
        row
        for row in TABLE
        if row.mood in _ANSWERED and any(account_of(principal) is account for principal in row.consumers)
    ]


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


def _many_answers(subject: str) -> dict[str, Any]:
    """One request for events has many answers; all of them come to the asker's own account."""
    return {"name": subject, "subject": subject, "type": "service", "response_type": "Stream"}


def _taken_from(subject: str, local: str, account: str) -> dict[str, Any]:
    entry = {"name": subject, "subject": subject, "type": "service", "account": account}
    return entry if local == subject else entry | {"local_subject": _referring(local)}


def _entry(row: Subject, kind: str, account: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": row.name, "subject": row.pattern(), "type": kind}
    return entry | ({"account": account} if account else {})


def _told(row: Subject, account: str) -> dict[str, Any]:
    """What is stored is told again on a subject of its own; people hear it under the one that it was said on.

    The broker hands on to a third account nothing that came from a second one; and so they hear what is kept, once.
    """
    return {
        "name": row.name,
        "subject": live_subject(row.pattern()),
        "local_subject": _referring(row.pattern()),
        "type": "stream",
        "account": account,
    }


def _referring(pattern: str) -> str:
    """A pattern whose wildcards are those of the subject that is imported, in order."""
    places = itertools.count(1)
    return ".".join(f"${next(places)}" if part == "*" else part for part in pattern.split("."))


def _unique(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(entry["subject"], entry["type"]): entry for entry in entries}.values())
