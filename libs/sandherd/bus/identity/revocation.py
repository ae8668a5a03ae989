"""Revokes credentials before they expire, by lists that all spawners share and that the accounts' JWTs contain.

There is one list for the account of sandboxes and one for the account of users. A revoked key is listed until its last
token has expired. A key needs about 94 bytes in the account's JWT, which has to stay below the broker's message limit,
so a list has at most `MAX_KEYS` keys. If there are more of sandboxes, those that expire last are not listed. These are
the keys of joiners, because those of workers expire within `worker_credential_life`, by default an hour. A joiner's
credential may be valid for hours, but only allows requesting a worker's credential, and the spawner refuses that. If
`worker_credential_life` is set to hours, valid keys of workers can be dropped, too. The list of users drops no key
whose token is valid; if it is full, no further key can be revoked, which is an error.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity.claims import CLAIMS_INBOX, CLAIMS_UPDATE, Claims, with_revocations
from sandherd.bus.identity.keys import Key, sign_claims
from sandherd.bus.identity.material import SpawnerKeys
from sandherd.bus.kv import bucket_of

BUCKET: Final = "revocations"
_SANDBOXES_KEY: Final = "list"
_USERS_KEY: Final = "people"
MAX_KEYS: Final = 4000
FOREVER: Final = datetime(2999, 1, 1, tzinfo=UTC)
"""The expiry that is listed for a token without an expiry."""
_PAUSE_FACTOR: Final = 3
"""The pause after a push, as a multiple of the push's duration, so that pushes of up to 0.08 s take at most a quarter
of the time."""
_MAX_PAUSE_SECONDS: Final = 0.25
"""Maximum duration of the pause after a push, in seconds."""
_CLOCK_SKEW: Final = 60
"""Seconds for which a key stays in the list after its token has expired, because clocks of machines may differ."""


class RevocationFailedError(Exception):
    """A revocation, or a push of an account's JWT, failed.

    If the broker refused the JWT of a revocation, the list is stored, and the next push has all of its keys.
    """


class RevocationListFullError(RevocationFailedError):
    """The list of users is full, so no key of this revocation is revoked."""


def with_new_keys(revoked: Mapping[str, int], new: Mapping[str, int], now: int) -> dict[str, int]:
    """The list with the keys of `new`, and without the keys whose tokens have expired. Pure.

    Each list maps a public key to the Unix second at which its token expires.
    """
    latest = dict(revoked)
    for key, end in new.items():
        latest[key] = max(end, latest.get(key, 0))
    return {key: end for key, end in latest.items() if end + _CLOCK_SKEW > now}


def within_limit(revoked: Mapping[str, int]) -> dict[str, int]:
    """The list without the keys that are too many. Those that expire last are dropped. Pure."""
    return dict(revoked) if len(revoked) <= MAX_KEYS else dict(sorted(revoked.items(), key=itemgetter(1))[:MAX_KEYS])


def account_token(account: Claims, revoked: Mapping[str, int], signing: Key, now: int) -> str:
    """The account's JWT with this list. The broker refuses a listed key's tokens issued until the listed second."""
    return sign_claims(with_revocations(account, revoked), signing, now)


class RevocationList:
    """A list of revoked keys in the bucket. It is changed by compare-and-set, so several spawners may share it."""

    def __init__(self, bucket: KeyValue, key: str = _SANDBOXES_KEY) -> None:
        self._bucket = bucket
        self._key = key
        self._drops_keys = key == _SANDBOXES_KEY

    @classmethod
    def of(cls, js: JetStreamContext) -> "RevocationList":
        """The list of revoked keys of sandboxes."""
        return cls(bucket_of(js, BUCKET))

    @classmethod
    def of_users(cls, js: JetStreamContext) -> "RevocationList":
        """The list of revoked keys of users."""
        return cls(bucket_of(js, BUCKET), _USERS_KEY)

    async def read(self) -> tuple[dict[str, int], int]:
        """The list and its revision. Before the first change, an empty list and 0."""
        try:
            entry = await self._bucket.get(self._key)
        except KeyNotFoundError:
            return {}, 0
        return json.loads(entry.value or b"{}"), entry.revision or 0

    async def change(self, new: Mapping[str, int], now: int) -> tuple[dict[str, int], int]:
        """Add keys and drop expired ones. Returns the resulting list and its revision.

        Raises `RevocationListFullError` if there is no space for a key of a user.
        """
        while True:
            stored, revision = await self.read()
            new_list = with_new_keys(stored, new, now)
            if self._drops_keys:
                new_list = within_limit(new_list)
            elif len(new_list) > MAX_KEYS:
                raise RevocationListFullError(f"{MAX_KEYS} valid keys of users are revoked, and no more can be")
            if new_list == stored:
                return stored, revision
            try:
                return new_list, await self._bucket.update(self._key, json.dumps(new_list).encode(), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another spawner has changed the list: retry with its list


@dataclass
class _Push:
    """The keys that are revoked by one push of the account's JWT."""

    keys: dict[str, int] = field(default_factory=dict)
    moment: int = 0
    done: bool = False

    def add(self, keys: Mapping[str, datetime], now: datetime) -> None:
        self.moment = max(self.moment, int(now.timestamp()))
        for key, end in keys.items():
            self.keys[key] = max(int(end.timestamp()), self.keys.get(key, 0))


class AccountRevoker:
    """Writes the list of one account, and pushes the account's JWT to the broker, signed by the operator's key.

    The list and the JWT contain all revoked keys, up to some hundred KiB. So keys that are revoked during a push wait
    for the next push, which revokes all of them. It begins after a pause in proportion to the duration of the last one,
    of at most 0.25 s.
    """

    def __init__(self, system: Bus, shared: RevocationList, account: Claims, signing: Key) -> None:
        self._system = system
        self._shared = shared
        self._account = account
        self._signing = signing
        self._next_push = _Push()
        self._one_at_a_time = asyncio.Lock()
        self._pause_ends_at = 0.0

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        """Make the broker refuse these public keys until their tokens expire, and close the connections that use them.

        Idempotent. After an error, call it again. Raises `RevocationFailedError`, `BusError`, or errors of the bucket.
        """
        push = self._next_push
        push.add(keys, now)
        async with self._one_at_a_time:
            if push.done:
                return
            await asyncio.sleep(max(0.0, self._pause_ends_at - _clock()))
            if push is self._next_push:
                self._next_push = _Push()  # keys that are revoked from now on are not in this push
            started_at = _clock()
            await self._push(push.keys, push.moment)
            push.done = True
            self._pause_ends_at = _clock() + min((_clock() - started_at) * _PAUSE_FACTOR, _MAX_PAUSE_SECONDS)

    async def _push(self, keys: Mapping[str, int], moment: int) -> None:
        listed, revision = await self._shared.change(keys, moment)
        while True:
            await push_token(self._system, account_token(self._account, listed, self._signing, moment))
            latest, latest_revision = await self._shared.read()
            if latest_revision == revision:
                return
            # Another spawner has changed the list meanwhile, and this push may have replaced its token: push again.
            listed, revision = latest, latest_revision

    async def revoked(self) -> frozenset[str]:
        """The revoked public keys in the list. Raises the errors of the bucket."""
        return frozenset((await self._shared.read())[0])


class Revoker(AccountRevoker):
    """Revokes credentials of sandboxes, in the spawner; `users` revokes those of users. Use `Revoker.open`.

    `users` is None if an earlier version created the spawner's keys, without the claims of the account of users.
    """

    def __init__(self, system: Bus, js: JetStreamContext, keys: SpawnerKeys) -> None:
        super().__init__(system, RevocationList.of(js), keys.account, keys.operator_signing)
        shared, signing = RevocationList.of_users(js), keys.operator_signing
        self.users = AccountRevoker(system, shared, keys.people, signing) if keys.people else None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, keys: SpawnerKeys, js: JetStreamContext) -> AsyncIterator["Revoker"]:
        """Connect to the system account with the one credential that may push the accounts' JWTs.

        `js` is the spawner's own connection, for the bucket.
        """
        async with system_connection(url, keys.claims_credentials) as system:
            yield cls(system, js, keys)

    async def sync(self, now: datetime) -> None:
        """Push both accounts' JWTs, from the claims in the spawner's keys and with the whole lists: once at start.

        After an upgrade the claims of an account may have changed, or the broker may have a JWT without the list.
        """
        await self.revoke({}, now)
        if self.users:
            await self.users.revoke({}, now)


def system_connection(
    url: str, claims_credentials: Path, connect_timeout: float | None = None
) -> AbstractAsyncContextManager[Bus]:
    """A connection to the system account. Its credential only allows pushing accounts' JWTs to the broker."""
    connection_identity = ConnectionIdentity.file(claims_credentials)
    return Bus.open(
        url, name="spawner-claims", identity=connection_identity, inbox=CLAIMS_INBOX, connect_timeout=connect_timeout
    )


async def push_token(system: Bus, token: str) -> None:
    """Push an account's JWT. Raises `RevocationFailedError`, or `BusError` if the broker does not respond."""
    reply = await system.request(CLAIMS_UPDATE, token.encode(), timeout=5)
    if not _is_accepted(reply):
        raise RevocationFailedError(f"the broker refuses the account's JWT: {reply[:500].decode(errors='replace')}")


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _is_accepted(reply: bytes) -> bool:
    """Whether the broker's reply has its code for success. A broker that is about to stop may send an empty one."""
    try:
        match json.loads(reply):
            case {"data": {"code": 200}}:
                return True
    except ValueError:
        pass
    return False
