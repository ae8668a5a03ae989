"""Three accounts, and the few subjects that pass between them: derived from the subject table.

The broker checks what a user publishes and subscribes to, but not the reply subject that it puts on a message: an
acknowledgement of JetStream, or a service's answer, would go wherever a sandbox sends it, with the rights of whoever
answers. So nobody who is not trusted shares an account with the streams. What passes between accounts passes by name,
and a reply comes back to the asker's own account, where it can do nothing.

    SANDBOXES   workers and joiners
    PEOPLE      clients and operators
    HERD        the services, the streams and the buckets
"""

import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import TABLE, Mood, Principal, Subject


class Account(StrEnum):
    """Where a principal lives."""

    HERD = "HERD"
    SANDBOXES = "SANDBOXES"
    PEOPLE = "PEOPLE"


_HOMES: Final = {
    Principal.WORKER: Account.SANDBOXES,
    Principal.JOINER: Account.SANDBOXES,
    Principal.CLIENT: Account.PEOPLE,
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
        return [*_unique(asked), *told]
    return [_entry(row, "service") for row in _asked_of(account)]


def imports(account: Account, keys: Mapping[Account, str]) -> list[dict[str, Any]]:
    """What this account reaches in others, as its claims say it. `keys` are the accounts' public keys."""
    if account is Account.HERD:
        return [_entry(row, "service", keys[outer]) for outer in _OUTER for row in _asked_of(outer)]
    found = [_entry(row, "service", keys[Account.HERD]) for row in _said_in(account)]
    if account is Account.PEOPLE:
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


def _entry(row: Subject, kind: str, account: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": row.name, "subject": row.pattern(), "type": kind}
    return entry | ({"account": account} if account else {})


def _told(row: Subject, account: str) -> dict[str, Any]:
    """What is stored is told again on a subject of its own; people hear it under the one that it was said on.

    The broker hands on to a third account nothing that came from a second one; and so they hear what is kept, once.
    """
    places = itertools.count(1)
    local = ".".join(f"${next(places)}" if part == "*" else part for part in row.pattern().split("."))
    return {
        "name": row.name,
        "subject": live_subject(row.pattern()),
        "local_subject": local,
        "type": "stream",
        "account": account,
    }


def _unique(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(entry["subject"], entry["type"]): entry for entry in entries}.values())
