"""The broker's accounts and the subjects imported between them, derived from the permissions and the tables.

The broker checks which subjects a user publishes and subscribes to. It checks neither the reply subject of a message
nor the subjects in the body of a JetStream request: what the broker or a service publishes there is published with the
permissions of the replier. So only principals that are trusted with the streams share an account with them. A message
passes from one account to another only if its subject is exported and imported. A reply returns to the requester's own
account, where it is delivered to that account's subscriptions and never forwarded by another import
(tests/integration/bus). Only replies of the system account are forwarded, and only to subjects to which the requester's
account may publish anyway.

    HERD                                  the streams and the buckets, the spawner, and credentials to change streams
    EVENT_INGEST, MONITOR, MESSAGE_RELAY, GATEWAY  one service each
    PROVISIONER                           creates streams
    STORE_GUARD                           checks whether nats-server stores
    SANDBOXES                             workers and joiners
    PEOPLE                                clients, subscribers and operators
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.bus.auth.account_names import Account, account_of
from sandherd.bus.auth.permissions import SERVICES, for_service, live_of
from sandherd.bus.auth.setup_permissions import PROBE_PERMISSIONS, for_provisioner
from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import TABLE, MessageKind, Principal, Subject, covers
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED

__all__ = ["Account", "account_of", "exports", "imports"]

_SERVICE_OF_ACCOUNT: Final = {
    account_of(service): service for service in SERVICES if account_of(service) is not Account.HERD
}
"""The service of each account that belongs to one service."""
_RECEIVED_LIVE: Final = frozenset({MessageKind.EVENT, MessageKind.OUTPUT})
"""The kinds of message that the account PEOPLE receives live. It gets other data as replies to requests."""
_KINDS_WITH_REPLY: Final = frozenset({MessageKind.DELIVERY, MessageKind.REQUEST})
"""Kinds of message whose receiver replies."""
_EXAMINE_ENDING: Final = ".examine"
"""The ending of the requests that a backup sends from the account of the streams, to check whether services run."""


def exports(account: Account) -> list[dict[str, Any]]:
    """The subjects of this account that others may use, as exports in its claims."""
    reached = [
        entry
        for other in Account
        if other is not account
        for entry in _reachable_subjects(other)
        if entry[1] is account
    ]
    services = [_export_entry(subject) for subject, _, _ in reached]
    streams: list[dict[str, Any]] = []
    if account is Account.HERD:
        live = [live_subject(row.pattern()) for row in _live_subjects_of_people()]
        streams = [{"name": subject, "subject": subject, "type": "stream"} for subject in live]
    return [*_without_overlaps(services), *streams]


def imports(account: Account, keys: Mapping[Account, str]) -> list[dict[str, Any]]:
    """The subjects of other accounts that this one uses, as imports in its claims. `keys` are public account keys."""
    entries = [
        {"name": subject, "subject": subject, "type": "service", "account": keys[target]}
        | ({"local_subject": _with_wildcard_references(local)} if local != subject else {})
        for subject, target, local in _reachable_subjects(account)
    ]
    return [*_without_overlaps(entries), *_republished_imports(account, keys[Account.HERD])]


_ReachableSubject = tuple[str, Account, str]
"""A subject, the account that it is exported from, and its name in the account that imports it."""


@cache
def _reachable_subjects(account: Account) -> tuple[_ReachableSubject, ...]:
    """The subjects of other accounts to which the users of an account may publish."""
    return tuple(_all_reachable_subjects(account))


def _all_reachable_subjects(account: Account) -> Iterator[_ReachableSubject]:
    if account is Account.HERD:
        yield from _requests_of(Principal.SPAWNER)
        rows = [row for row in TABLE if row.name.endswith(_EXAMINE_ENDING)]
        yield from (
            (row.pattern(), home, row.pattern())
            for row in rows
            for home in _receiving_accounts(row)
            if home in _SERVICE_OF_ACCOUNT
        )
    elif account in _SERVICE_OF_ACCOUNT:
        yield from _reachable_for_service(_SERVICE_OF_ACCOUNT[account])
    elif account is Account.PROVISIONER:
        yield from ((_name_in_herd(local), Account.HERD, local) for local in for_provisioner().publish)
    elif account is Account.STORE_GUARD:
        yield from ((subject, Account.HERD, subject) for subject in PROBE_PERMISSIONS.publish)
    else:
        published = [row for row in TABLE if any(account_of(principal) is account for principal in row.producers)]
        yield from ((row.pattern(), home, row.pattern()) for row in published for home in _receiving_accounts(row))
        if account is Account.PEOPLE:
            yield from ((subject, Account.HERD, local) for subject, local in _pull_subjects())


def _reachable_for_service(service: Principal) -> Iterator[_ReachableSubject]:
    """The subjects of other accounts to which a service may publish: its requests, and subjects of HERD."""
    requests = dict.fromkeys(_requests_of(service))
    yield from requests
    others = {subject for subject, _, _ in requests}
    for local in for_service(service).publish:
        if local not in others:
            yield _name_in_herd(local), Account.HERD, local


def _name_in_herd(local: str) -> str:
    """The name of a JetStream API subject in the account of the streams."""
    return local.replace(api.API_FROM_OUTSIDE, api.API, 1)


def _requests_of(service: Principal) -> Iterator[_ReachableSubject]:
    """The requests that a service sends to other accounts."""
    for row in TABLE:
        if service in row.producers and row.kind in _KINDS_WITH_REPLY:
            for home in _receiving_accounts(row):
                if home is not account_of(service):
                    yield row.pattern(), home, row.pattern()


def _receiving_accounts(row: Subject) -> list[Account]:
    """The accounts that receive the messages of a table's row: the streams' account, or those of the repliers."""
    if row.kind not in _KINDS_WITH_REPLY:
        return [Account.HERD]
    return list(dict.fromkeys(account_of(principal) for principal in sorted(row.consumers)))


def _live_subjects_of_people() -> list[Subject]:
    return [
        row
        for row in TABLE
        if row.kind in _RECEIVED_LIVE and any(account_of(principal) is Account.PEOPLE for principal in row.consumers)
    ]


def _pull_subjects() -> Iterator[tuple[str, str]]:
    """The subjects to pull and acknowledge events of durable consumers: each as in HERD, and its name in PEOPLE.

    A user's permissions limit it to certain consumers.
    """
    here, outside = api.consuming(SUBSCRIBED, "*"), api.consuming(SUBSCRIBED, "*", api.API_FROM_OUTSIDE)
    return zip(here, outside, strict=True)


def _export_entry(subject: str) -> dict[str, Any]:
    """An export of a subject. If a request to it may get several replies, its response type is `Stream`."""
    entry: dict[str, Any] = {"name": subject, "subject": subject, "type": "service"}
    many = subject.startswith(("$JS.ACK.", f"{api.API}.CONSUMER.", f"{api.API}.DIRECT.GET."))
    return entry | ({"response_type": "Stream"} if many else {})


def _republished_imports(account: Account, herd: str) -> Iterator[dict[str, Any]]:
    """The imports with which an account receives stored messages, which streams republish on separate subjects.

    In the account PEOPLE the messages have their original subject. The broker does not forward a message from a second
    account to a third one, so subscribers receive each stored message once.
    """
    followed_subjects = live_of(_SERVICE_OF_ACCOUNT[account]) if account in _SERVICE_OF_ACCOUNT else ()
    for row in _live_subjects_of_people():
        live = live_subject(row.pattern())
        entry = {"name": row.name, "subject": live, "type": "stream", "account": herd}
        if account is Account.PEOPLE:
            yield entry | {"local_subject": _with_wildcard_references(row.pattern())}
        elif any(covers(pattern, live) for pattern in followed_subjects):
            yield entry


def _with_wildcard_references(pattern: str) -> str:
    """The pattern with `$1`, `$2`, … in place of its wildcards.

    They stand for the wildcards of the imported subject.
    """
    numbers = itertools.count(1)
    return ".".join(f"${next(numbers)}" if part == "*" else part for part in pattern.split("."))


def _without_overlaps(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries without duplicates and without those that another entry covers, as the broker refuses overlaps."""
    unique = {entry["subject"]: entry for entry in entries}
    return [unique[subject] for subject in _without_covered(tuple(unique))]


@cache
def _without_covered(subjects: tuple[str, ...]) -> tuple[str, ...]:
    """The subjects without those that another subject covers.

    The result is cached, because each start of a broker needs the same subjects.
    """
    wide = [subject for subject in subjects if "*" in subject or subject.endswith(">")]
    return tuple(
        subject for subject in subjects if not any(other != subject and _contains(other, subject) for other in wide)
    )


def _contains(pattern_text: str, narrow: str) -> bool:
    """Whether the pattern `pattern_text` matches every subject that the pattern `narrow` matches."""
    pattern, tokens = pattern_text.split("."), narrow.split(".")
    if pattern[-1] == ">":
        return len(tokens) >= len(pattern) and _tokens_match(pattern[:-1], tokens)
    return tokens[-1] != ">" and len(pattern) == len(tokens) and _tokens_match(pattern, tokens)


def _tokens_match(pattern: list[str], tokens: list[str]) -> bool:
    return all(want in {"*", token} for want, token in zip(pattern, tokens, strict=False))
