"""Keys of stored secrets: one for each record, encrypted at rest, erased when its record no longer needs it.

A record in a bucket contains the secret part of its spec, encrypted with the record's own key. That key is in bucket
`secret_keys`, encrypted with the herd's key, which is derived from the spawner's signing key and which the broker does
not store. Deleting the key's message makes the broker overwrite it with random bytes (`no_erase` is false by default).
A newer message, a purge or an acknowledgement would leave its bytes in the block until the block is compacted.
"""

import hmac
from typing import Final

import nats.js.errors
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox
from nacl.utils import random
from nats.js.kv import KeyValue

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.kv import bucket_of, last_message
from sandherd.bus.message_erasure import erase
from sandherd.telemetry import logs
from spawner.records.base_record import StoreUnavailableError

BUCKET: Final = "secret_keys"
_STREAM: Final = f"KV_{BUCKET}"
_MAX_CACHED_KEYS: Final = 10_000
_PURPOSE: Final = b"sandherd stored secrets"
_log: Final = logs.get("records.vault")


def herd_key(seed: str) -> bytes:
    """The key that encrypts the records' keys, derived from the seed of one of the spawner's signing keys."""
    return hmac.digest(seed.encode(), _PURPOSE, "sha256")


class Vault:
    """The bucket of keys. A name is `<bucket>.<project>.<record>`. Every replica has the same herd key."""

    def __init__(self, bus: Bus, key: bytes) -> None:
        self._bus = bus
        self._box = SecretBox(key)
        self._known: dict[str, bytes] = {}
        self._to_erase: dict[str, bytes | None] = {}
        """Names whose erasure is not confirmed, each with its key if that was known."""

    async def seal(self, name: str, text: str) -> str:
        """The text encrypted with the key of this name, which is created if it does not exist.

        Raises `StoreUnavailableError`, as `open` does.
        """
        # The cached key is not used, because another replica may have erased it meanwhile.
        key = await self._read(name) or await self._make(name)
        return SecretBox(key).encrypt(text.encode()).hex()

    async def open(self, name: str, sealed: str) -> str | None:
        """The decrypted text, or None if its key was erased."""
        text = _opened(self._known.get(name), sealed)
        return _opened(await self._read(name), sealed) if text is None else text

    async def erase(self, name: str) -> None:
        """Erase a key, so that its record's secrets can't be decrypted. A failure is retried by `retry_erasures`."""
        self._to_erase[name] = self._known.pop(name, None)
        await self._erase(name, None)

    async def _erase(self, name: str, only: bytes | None) -> None:
        """Erase a key; if `only` is given, do not erase a different key that replaced it."""
        try:
            found = await last_message(self._bus, _STREAM, self._subject(name))
            if only is None or only == self._decrypted(found.data):
                await erase(self._bus, _STREAM, found.seq or 0)
        except nats.js.errors.NotFoundError:
            pass
        except BROKER_ERRORS as error:
            _log.warning("encryption key not erased, retrying", key=name, error=repr(error))
            return
        self._to_erase.pop(name, None)

    async def retry_erasures(self) -> None:
        """Retry the erasures that failed."""
        for name, key in tuple(self._to_erase.items()):
            await self._erase(name, key)

    async def names(self) -> frozenset[str]:
        """The names of all keys. Raises `StoreUnavailableError`."""
        try:
            state = (await self._bus.js.stream_info(_STREAM, subjects_filter=">")).state
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{BUCKET}: {error!r}") from error
        return frozenset(subject.removeprefix(self._subject("")) for subject in state.subjects or ())

    async def _read(self, name: str) -> bytes | None:
        try:
            found = await last_message(self._bus, _STREAM, self._subject(name))
        except nats.js.errors.NotFoundError:
            return None
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{BUCKET} {name}: {error!r}") from error
        key = self._decrypted(found.data)
        if key is not None:
            self._remember(name, key)
        return key

    def _decrypted(self, data: bytes | None) -> bytes | None:
        """The key in a message; None if it was encrypted with a different herd key."""
        try:
            return self._box.decrypt(data or b"")
        except (CryptoError, ValueError):
            return None

    def _remember(self, name: str, key: bytes) -> None:
        if len(self._known) >= _MAX_CACHED_KEYS:
            self._known.pop(next(iter(self._known)))
        self._known[name] = key

    async def _make(self, name: str) -> bytes:
        key = random(SecretBox.KEY_SIZE)
        try:
            await self._kv.create(name, bytes(self._box.encrypt(key)))
        except nats.js.errors.KeyWrongLastSequenceError:  # another replica was first
            found = await self._read(name)
            if found is None:  # unusable: encrypted with a different herd key
                await self._erase(name, None)
            return found or await self._make(name)
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{BUCKET} {name}: {error!r}") from error
        self._remember(name, key)
        return key

    @property
    def _kv(self) -> KeyValue:
        return bucket_of(self._bus.js, BUCKET)

    @staticmethod
    def _subject(name: str) -> str:
        return f"$KV.{BUCKET}.{name}"


def _opened(key: bytes | None, sealed: str) -> str | None:
    if key is None:
        return None
    try:
        return SecretBox(key).decrypt(bytes.fromhex(sealed)).decode()
    except CryptoError:  # the key of a previous record of the same name
        return None
