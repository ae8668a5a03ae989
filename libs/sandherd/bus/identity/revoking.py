"""Taking credentials back before they expire: a list that all spawners share, and the account token that says it.

A revoked key is listed until its last token has run out by itself, and then forgotten. A key takes about 94 bytes in
the account's token, which has to stay under the broker's message limit, so the list holds at most `MOST` keys: those of
workers, which expire within an hour, before those of joiners, which may be good for hours and only let their holder ask
for a credential that is refused.
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
from sandherd.bus.reading import bucket_of

BUCKET: Final = "revocations"
_KEY: Final = "list"
MOST: Final = 4000
_SKEW: Final = 60
"""How long a key stays listed after its token's end, in seconds: two machines' clocks may differ by that."""


class RevocationFailedError(Exception):
    """The broker did not take the account's new token; the list is kept, and the next push says it all."""


def merged(revoked: Mapping[str, int], new: Mapping[str, int], now: int) -> dict[str, int]:
    """The list with new keys and without those that are over: public key → Unix second at which its token ends."""
    latest = dict(revoked)
    for key, end in new.items():
        latest[key] = max(end, latest.get(key, 0))
    good = {key: end for key, end in latest.items() if end + _SKEW > now}
    return good if len(good) <= MOST else dict(sorted(good.items(), key=itemgetter(1))[:MOST])


def account_token(account: Claims, revoked: Mapping[str, int], signing: Key, now: int) -> str:
    """The account's token with this list. Tokens of a listed key that were made before its end are refused."""
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
        """Add keys and drop those that are over. Returns the list as it stands then, and its revision."""
        while True:
            held, revision = await self.read()
            wanted = merged(held, new, now)
            if wanted == held:
                return held, revision
            try:
                return wanted, await self._bucket.update(_KEY, json.dumps(wanted).encode(), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another spawner was first: once more, on what it wrote


class Revoker:
    """The spawner's: writes the list and tells the broker. Use `Revoker.open`."""

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
        """Refuse these public keys until their tokens expire; connections that use them are cut.

        Doing it again is harmless. Raises `RevocationFailedError`, or what the bucket raises; then do it again.
        """
        await self._tell(keys, now)

    async def sync(self, now: datetime) -> None:
        """Give the broker the account as it is in our keys, with the whole list: once at start.

        After an upgrade the account's rights may be others, and a broker that was given it anew knows no list.
        """
        await self._tell({}, now)

    async def _tell(self, keys: Mapping[str, datetime], now: datetime) -> None:
        moment = int(now.timestamp())
        listed, revision = await self._shared.change({key: int(end.timestamp()) for key, end in keys.items()}, moment)
        while True:
            await give_token(
                self._system, account_token(self._keys.account, listed, self._keys.operator_signing, moment)
            )
            latest, latest_revision = await self._shared.read()
            if latest_revision == revision:
                return
            # Another spawner wrote meanwhile, and ours may have been pushed over its: push what both wrote.
            listed, revision = latest, latest_revision


@asynccontextmanager
async def system_line(url: str, claims_credentials: Path, patience: float | None = None) -> AsyncIterator[Bus]:
    """A connection to the system account that may do one thing: give the broker an account's new token."""
    voice = Voice.file(claims_credentials)
    async with Bus.open(url, name="spawner-claims", identity=voice, inbox=CLAIMS_INBOX, patience=patience) as system:
        yield system


async def give_token(system: Bus, token: str) -> None:
    """Have the broker take an account's token. Raises `RevocationFailedError`."""
    reply = json.loads(await system.request(CLAIMS_UPDATE, token.encode(), timeout=5))
    if reply.get("data", {}).get("code") != 200:  # the broker's "done"
        raise RevocationFailedError(f"the broker refuses the account's token: {reply.get('error', reply)}")
