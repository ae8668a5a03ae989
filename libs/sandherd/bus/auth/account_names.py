"""The accounts of the broker, and the account of each principal."""

from enum import StrEnum
from typing import Final

from sandherd.bus import api_subjects as api
from sandherd.contracts.subjects import Principal


class Account(StrEnum):
    """An account of the broker. The value is the name in the account's JWT."""

    HERD = "HERD"
    EVENT_INGEST = "EVENT_INGEST"
    MONITOR = "MONITOR"
    MESSAGE_RELAY = "MESSAGE_RELAY"
    GATEWAY = "GATEWAY"
    PROVISIONER = "PROVISIONER"
    STORE_GUARD = "STORE_GUARD"
    SANDBOXES = "SANDBOXES"
    PEOPLE = "PEOPLE"


_ACCOUNT_BY_PRINCIPAL: Final = {
    Principal.SPAWNER: Account.HERD,
    Principal.EVENT_INGEST: Account.EVENT_INGEST,
    Principal.MONITOR: Account.MONITOR,
    Principal.MESSAGE_RELAY: Account.MESSAGE_RELAY,
    Principal.GATEWAY: Account.GATEWAY,
    Principal.WORKER: Account.SANDBOXES,
    Principal.JOINER: Account.SANDBOXES,
    Principal.CLIENT: Account.PEOPLE,
    Principal.SUBSCRIBER: Account.PEOPLE,
    Principal.OPERATOR: Account.PEOPLE,
}


def account_of(principal: Principal) -> Account:
    """The account that a principal's users are in."""
    return _ACCOUNT_BY_PRINCIPAL[principal]


def api_of(principal: Principal) -> str:
    """The prefix of the JetStream API's subjects for this principal."""
    return api.API if account_of(principal) is Account.HERD else api.API_FROM_OUTSIDE
