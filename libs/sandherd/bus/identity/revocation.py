"""Revoking credentials before they expire: a list that all spawners share, and the account token that contains it.

A revoked key is listed until its last token has expired, and then removed. A key takes about 94 bytes in the account's
token, which has to stay below the broker's message limit, so the list has at most `MAX_KEYS` keys: those of workers,
which expire within an hour, before those of joiners, which may be valid for hours and only allow requesting a
credential, which is refused.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from sandherd.bus.connection import Bus
from sandherd.bus.connection import Identity as Voice
from sandherd.bus.identity.claims import CLAIMS_INBOX, CLAIMS_UPDATE, Claims, with_revocations
from sandherd.bus.identity.keys import Key, sign_claims
from sandherd.bus.identity.material import SpawnerKeys
from sandherd.bus.kv import bucket_of

BUCKET: Final = "revocations"
_KEY: Final = "list"
MAX_KEYS: Final = 4000
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
    """The list in its bucket, changed by compare-and-set so that several spawners may share it."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    @classmethod
    def of(cls, js: JetStreamContext) -> "RevocationList":
        """The list of this broker."""
        return cls(bucket_of(js, BUCKET))

    async def read(self) -> tuple[dict[str, int], int]:
        """The list and its revision; an empty one at revision 0 before the first change."""
        try:
            entry = await self._bucket.get(_KEY)
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
                return wanted, await self._bucket.update(_KEY, json.dumps(wanted).encode(), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another spawner wrote first: retry on its list


class Revoker:
    """Used by the spawner: writes the list and pushes it to the broker. Use `Revoker.open`."""

    def __init__(self, system: Bus, shared: RevocationList, keys: SpawnerKeys) -> None:
        self._system = system
        self._shared = shared
        self._keys = keys

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, keys: SpawnerKeys, js: JetStreamContext) -> AsyncIterator["Revoker"]:
        """Connect to the system account with the one credential that may push the account's token.

        `js` is the spawner's own connection, for the bucket.
        """
        async with system_line(url, keys.claims_credentials) as system:
            yield cls(system, RevocationList.of(js), keys)

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        """Refuse these public keys until their tokens expire; connections that use them are closed.

        Idempotent. Raises `RevocationFailedError`, or what the bucket raises; then call it again.
        """
        await self._publish(keys, now)

    async def sync(self, now: datetime) -> None:
        """Push the account as it is in the spawner's keys, with the whole list: once at start.

        After an upgrade the account's permissions may differ, and a broker that got a new token of the account has no
        list.
        """
        await self._publish({}, now)

    async def _publish(self, keys: Mapping[str, datetime], now: datetime) -> None:
        moment = int(now.timestamp())
        listed, revision = await self._shared.change({key: int(end.timestamp()) for key, end in keys.items()}, moment)
        while True:
            await push_token(
                self._system, account_token(self._keys.account, listed, self._keys.operator_signing, moment)
            )
            latest, latest_revision = await self._shared.read()
            if latest_revision == revision:
                return
            # Another spawner wrote meanwhile, and this push may have replaced its push: push the merged list.
            listed, revision = latest, latest_revision


@asynccontextmanager
async def system_line(url: str, claims_credentials: Path, patience: float | None = None) -> AsyncIterator[Bus]:
    """A connection to the system account that may only push an account's new token to the broker."""
    voice = Voice.file(claims_credentials)
    async with Bus.open(url, name="spawner-claims", identity=voice, inbox=CLAIMS_INBOX, patience=patience) as system:
        yield system


async def push_token(system: Bus, token: str) -> None:
    """Push an account's token to the broker. Raises `RevocationFailedError`."""
    reply = json.loads(await system.request(CLAIMS_UPDATE, token.encode(), timeout=5))
    if reply.get("data", {}).get("code") != 200:  # the broker's code for success
        raise RevocationFailedError(f"the broker refuses the account's token: {reply.get('error', reply)}")
