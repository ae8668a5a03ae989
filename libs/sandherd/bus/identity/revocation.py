"""Revoking credentials before they expire: lists that all spawners share, and the account tokens that contain them.

There is one list for the account of sandboxes and one for that of users. A revoked key is listed until its last token
has expired, and then removed; one of a token without an expiry is never removed. A key takes about 94 bytes in the
account's token, which has to stay below the broker's message limit, so a list has at most `MAX_KEYS` keys: those of
workers, which expire within an hour, before those of joiners, which may be valid for hours and only allow requesting a
credential, which is refused.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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
_SANDBOXES: Final = "list"
_PEOPLE: Final = "people"
MAX_KEYS: Final = 4000
FOREVER: Final = datetime(2999, 1, 1, tzinfo=UTC)
"""The end of a token without an expiry."""
_REST: Final = 3
"""A push takes at most a quarter of the time: the rest before the next one is this many times as long."""
_LONGEST_REST: Final = 0.25
"""Seconds."""
_SKEW: Final = 60
"""How long a key stays listed after its token has expired, in seconds: clocks of two machines may differ by this."""


class RevocationFailedError(Exception):
    """The broker did not accept the account's new token; the list is stored, and the next push contains all of it."""


def merged(revoked: Mapping[str, int], new: Mapping[str, int], now: int) -> dict[str, int]:
    """The list with new keys and without expired ones: public key → Unix second at which its token expires."""
    latest = dict(revoked)
    for key, end in new.items():
        latest[key] = max(end, latest.get(key, 0))
    good = {key: end for key, end in latest.items() if end + _SKEW > now}
    return good if len(good) <= MAX_KEYS else dict(sorted(good.items(), key=itemgetter(1))[:MAX_KEYS])


def account_token(account: Claims, revoked: Mapping[str, int], signing: Key, now: int) -> str:
    """The account's token with this list. Tokens of a listed key issued before the listed second are refused."""
    return sign_claims(with_revocations(account, revoked), signing, now)


class RevocationList:
    """A list in the bucket, changed by compare-and-set so that several spawners may share it."""

    def __init__(self, bucket: KeyValue, key: str = _SANDBOXES) -> None:
        self._bucket = bucket
        self._key = key

    @classmethod
    def of(cls, js: JetStreamContext) -> "RevocationList":
        """The list of this broker's sandboxes."""
        return cls(bucket_of(js, BUCKET))

    @classmethod
    def of_people(cls, js: JetStreamContext) -> "RevocationList":
        """The list of this broker's users."""
        return cls(bucket_of(js, BUCKET), _PEOPLE)

    async def read(self) -> tuple[dict[str, int], int]:
        """The list and its revision; an empty one at revision 0 before the first change."""
        try:
            entry = await self._bucket.get(self._key)
        except KeyNotFoundError:
            return {}, 0
        return json.loads(entry.value or b"{}"), entry.revision or 0

    async def change(self, new: Mapping[str, int], now: int) -> tuple[dict[str, int], int]:
        """Add keys and drop expired ones. Returns the resulting list and its revision."""
        while True:
            held, revision = await self.read()
            wanted = merged(held, new, now)
            if wanted == held:
                return held, revision
            try:
                return wanted, await self._bucket.update(self._key, json.dumps(wanted).encode(), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another spawner wrote first: retry on its list


@dataclass
class _Push:
    """Keys that are revoked by one push."""

    keys: dict[str, int] = field(default_factory=dict)
    moment: int = 0
    done: bool = False

    def add(self, keys: Mapping[str, datetime], now: datetime) -> None:
        self.moment = max(self.moment, int(now.timestamp()))
        for key, end in keys.items():
            self.keys[key] = max(int(end.timestamp()), self.keys.get(key, 0))


class AccountRevoker:
    """Writes the list of one account and pushes its token to the broker, signed by the operator's signing key.

    Both have all revoked keys, up to some hundred KiB. So what is revoked during a push waits for the next one, which
    revokes all of it, and which begins after a rest in proportion to how long the last one took.
    """

    def __init__(self, system: Bus, shared: RevocationList, account: Claims, signing: Key) -> None:
        self._system = system
        self._shared = shared
        self._account = account
        self._signing = signing
        self._next = _Push()
        self._one_at_a_time = asyncio.Lock()
        self._rests_until = 0.0

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        """Refuse these public keys until their tokens expire; connections that use them are closed.

        Idempotent. Raises `RevocationFailedError`, or what the bucket raises; then call it again.
        """
        push = self._next
        push.add(keys, now)
        async with self._one_at_a_time:
            if push.done:
                return
            await asyncio.sleep(max(0.0, self._rests_until - _clock()))
            if push is self._next:
                self._next = _Push()  # what is revoked from now on is not in the list that is written
            begun = _clock()
            await self._push(push.keys, push.moment)
            push.done = True
            self._rests_until = _clock() + min((_clock() - begun) * _REST, _LONGEST_REST)

    async def _push(self, keys: Mapping[str, int], moment: int) -> None:
        listed, revision = await self._shared.change(keys, moment)
        while True:
            await push_token(self._system, account_token(self._account, listed, self._signing, moment))
            latest, latest_revision = await self._shared.read()
            if latest_revision == revision:
                return
            # Another spawner wrote meanwhile, and this push may have replaced its push: push the merged list.
            listed, revision = latest, latest_revision

    async def revoked(self) -> frozenset[str]:
        """The public keys that are listed. Raises what the bucket raises."""
        return frozenset((await self._shared.read())[0])


class Revoker(AccountRevoker):
    """Used by the spawner: revokes credentials of sandboxes, and of users by `people`. Use `Revoker.open`.

    `people` is None where the spawner's keys are of a version that had no claims of the account of users.
    """

    def __init__(self, system: Bus, js: JetStreamContext, keys: SpawnerKeys) -> None:
        super().__init__(system, RevocationList.of(js), keys.account, keys.operator_signing)
        users = RevocationList.of_people(js)
        signing = keys.operator_signing
        self.people = AccountRevoker(system, users, keys.people, signing) if keys.people else None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, keys: SpawnerKeys, js: JetStreamContext) -> AsyncIterator["Revoker"]:
        """Connect to the system account with the one credential that may push the tokens of accounts.

        `js` is the spawner's own connection, for the bucket.
        """
        async with system_connection(url, keys.claims_credentials) as system:
            yield cls(system, js, keys)

    async def sync(self, now: datetime) -> None:
        """Push both accounts as they are in the spawner's keys, with the whole lists: once at start.

        After an upgrade the account's permissions may differ, and a broker that got a new token of the account has no
        list.
        """
        await self.revoke({}, now)
        if self.people:
            await self.people.revoke({}, now)


@asynccontextmanager
async def system_connection(url: str, claims_credentials: Path, patience: float | None = None) -> AsyncIterator[Bus]:
    """A connection to the system account. Its credential only allows pushing the tokens of accounts to the broker."""
    connection_identity = ConnectionIdentity.file(claims_credentials)
    async with Bus.open(
        url, name="spawner-claims", identity=connection_identity, inbox=CLAIMS_INBOX, patience=patience
    ) as system:
        yield system


async def push_token(system: Bus, token: str) -> None:
    """Push an account's token to the broker. Raises `RevocationFailedError`."""
    reply = await system.request(CLAIMS_UPDATE, token.encode(), timeout=5)
    if not _is_accepted(reply):
        raise RevocationFailedError(f"the broker refuses the account's token: {reply[:500].decode(errors='replace')}")


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
