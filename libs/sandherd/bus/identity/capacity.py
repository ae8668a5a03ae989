"""The maximum number of connections of a server, and of each account. Pure.

Every connection uses a file descriptor, and so does every open file of a stream. A server without free descriptors
fails to write its streams. So it accepts fewer connections than it has descriptors, and each account has a limit, so
that no account can use the connections of the others.
"""

from dataclasses import dataclass
from typing import Final

from sandherd.bus.auth.account_names import Account

MAX_CONNECTIONS: Final = 16_384
MIN_CONNECTIONS: Final = 168
_SHARE_OF_DESCRIPTORS: Final = 0.6
"""The fraction of the descriptors that connections may use. The rest is for streams, cluster routes and monitoring."""
# The fractions of the connections for all sandboxes, all users, each service, and the account of the streams.
_SHARE_OF_SANDBOXES: Final = 0.57
_SHARE_OF_PEOPLE: Final = 0.23
_SHARE_OF_A_SERVICE: Final = 0.02
_SHARE_OF_THE_HERD: Final = 0.05
# The minimum and the maximum number of connections of one service's account, and of the account of the streams.
_MAX_OF_A_SERVICE: Final = 64
_MIN_OF_A_SERVICE: Final = 4
_MAX_OF_THE_HERD: Final = 128
_MIN_OF_THE_HERD: Final = 6
_MAX_OF_THE_PROVISIONER: Final = 4

SUBSCRIPTIONS: Final = {
    Account.HERD: 4096,
    Account.EVENT_INGEST: 4096,
    Account.MONITOR: 4096,
    Account.MESSAGE_RELAY: 4096,
    Account.GATEWAY: 4096,
    Account.PROVISIONER: 64,
    Account.STORE_GUARD: 64,
    Account.SANDBOXES: 64,
    Account.PEOPLE: 512,
}
"""The maximum number of subscriptions of each connection, by account. Workers and joiners have a lower limit."""


@dataclass(frozen=True)
class Capacity:
    """The maximum number of connections of one server, and the part of it that each account may use.

    The accounts together may use fewer than `connections`; the system account uses the rest.
    """

    connections: int = MAX_CONNECTIONS

    @classmethod
    def for_descriptors(cls, descriptors: int) -> "Capacity":
        """The capacity of a server whose process has this limit of open files. A negative number means no limit."""
        if descriptors < 0:
            return cls()
        share_of_descriptors = int(descriptors * _SHARE_OF_DESCRIPTORS)
        return cls(max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, share_of_descriptors)))

    def of(self, account: Account) -> int:
        """Maximum connections of an account. The sum over all accounts is less than `connections`."""
        if account is Account.SANDBOXES:
            return int(self.connections * _SHARE_OF_SANDBOXES)
        if account is Account.PEOPLE:
            return int(self.connections * _SHARE_OF_PEOPLE)
        if account is Account.HERD:
            return _limited(self.connections * _SHARE_OF_THE_HERD, _MIN_OF_THE_HERD, _MAX_OF_THE_HERD)
        if account is Account.PROVISIONER:
            return _MAX_OF_THE_PROVISIONER
        return _limited(self.connections * _SHARE_OF_A_SERVICE, _MIN_OF_A_SERVICE, _MAX_OF_A_SERVICE)


def _limited(value: float, lowest: int, highest: int) -> int:
    return max(lowest, min(highest, int(value)))
