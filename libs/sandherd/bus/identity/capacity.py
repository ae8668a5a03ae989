"""How many connections a broker takes, and how many of them each account may hold. Pure.

Every connection is a file descriptor, and so is every open file of a stream. A broker that has none left fails to write
its streams. So it takes fewer connections than it has descriptors, and no account may take those of the others.
"""

from dataclasses import dataclass
from typing import Final

from sandherd.bus.account_names import Account

MOST_CONNECTIONS: Final = 16_384
LEAST_CONNECTIONS: Final = 168
_OF_DESCRIPTORS: Final = 0.6
"""The rest is for the files of streams, routes between servers and the monitoring port."""
_SANDBOXES: Final = 0.57
_PEOPLE: Final = 0.25
_SERVICE: Final = 0.02
_HERD: Final = 0.05
_MOST_OF_A_SERVICE: Final = 64
_LEAST_OF_A_SERVICE: Final = 4
_MOST_OF_THE_HERD: Final = 128
_LEAST_OF_THE_HERD: Final = 6
_PROVISIONER: Final = 4

SUBSCRIPTIONS: Final = {
    Account.HERD: 4096,
    Account.EVENT_INGEST: 4096,
    Account.MONITOR: 4096,
    Account.MESSAGE_RELAY: 4096,
    Account.PROVISIONER: 64,
    Account.STORE_GUARD: 64,
    Account.SANDBOXES: 64,
    Account.PEOPLE: 512,
}
"""How many subscriptions one connection of an account may have; workers and joiners have fewer by their template."""


@dataclass(frozen=True)
class Capacity:
    """`connections` is how many one server takes. The system account shares what no other account may take."""

    connections: int = MOST_CONNECTIONS

    @classmethod
    def for_descriptors(cls, descriptors: int) -> "Capacity":
        """The capacity of a server whose process has this limit of open files; a negative number is no limit."""
        if descriptors < 0:
            return cls()
        wanted = int(descriptors * _OF_DESCRIPTORS)
        return cls(max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, wanted)))

    def of(self, account: Account) -> int:
        """How many connections an account may hold. All of them together leave some of `connections` free."""
        if account is Account.SANDBOXES:
            return int(self.connections * _SANDBOXES)
        if account is Account.PEOPLE:
            return int(self.connections * _PEOPLE)
        if account is Account.HERD:
            return _within(self.connections * _HERD, _LEAST_OF_THE_HERD, _MOST_OF_THE_HERD)
        if account is Account.PROVISIONER:
            return _PROVISIONER
        return _within(self.connections * _SERVICE, _LEAST_OF_A_SERVICE, _MOST_OF_A_SERVICE)


def _within(value: float, least: int, most: int) -> int:
    return max(least, min(most, int(value)))
