"""Encryption of contents in the artifact store: each chunk by itself, so that any chunk can be read alone.

It uses NaCl's secret boxes (XSalsa20-Poly1305), with a key for each project that is derived from
`SANDHERD_ARTIFACT_KEY`. The nonce of a chunk consists of 16 bytes that are chosen at random for the content, the index
of the chunk, and whether it is the last. So chunks can't be exchanged, and the end can't be cut off. An encrypted
content begins with a line that names the format, a fingerprint of the key, and the random bytes.
"""

import base64
import hmac
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox
from nacl.utils import random

from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.contracts.chunks import CHUNK_BYTES, chunk_count

_FORMAT: Final = b"sandherd artifact 1\n"
_KEY_CONTEXT: Final = b"sandherd artifacts of "
_FINGERPRINT_BYTES: Final = 8
_RANDOM_BYTES: Final = 16
_HEADER_BYTES: Final = len(_FORMAT) + _FINGERPRINT_BYTES + _RANDOM_BYTES
_ENCRYPTED_CHUNK_BYTES: Final = CHUNK_BYTES + SecretBox.MACBYTES


class ProjectKey:
    """The key of a project's contents."""

    def __init__(self, herd_key: bytes, project: str) -> None:
        key = hmac.digest(herd_key, _KEY_CONTEXT + project.encode(), "sha256")
        self._box = SecretBox(key)
        self._fingerprint = hmac.digest(key, b"fingerprint", "sha256")[:_FINGERPRINT_BYTES]

    def encrypt(self, chunks: Iterable[bytes], count: int) -> Iterator[bytes]:
        """Encrypt a content of `count` chunks: yields a header, then each encrypted chunk."""
        random_bytes = random(_RANDOM_BYTES)
        yield _FORMAT + self._fingerprint + random_bytes
        for index, chunk in enumerate(chunks):
            yield self._box.encrypt(chunk, _nonce(random_bytes, index, count)).ciphertext

    def decrypt(self, file: BinaryIO, index: int, size: int) -> bytes:
        """Read and decrypt the chunk at `index` of a content of `size` bytes.

        Raises `StorageError` if it is damaged, or encrypted with another key.
        """
        header = file.read(_HEADER_BYTES)
        fingerprint, random_bytes = header[len(_FORMAT) : -_RANDOM_BYTES], header[-_RANDOM_BYTES:]
        if len(header) < _HEADER_BYTES or not header.startswith(_FORMAT):
            raise StorageError(StorageFault.INVALID, "an encrypted artifact has no valid header")
        if not hmac.compare_digest(fingerprint, self._fingerprint):
            raise StorageError(StorageFault.OTHER_KEY, "an artifact is encrypted with another key")
        file.seek(_HEADER_BYTES + index * _ENCRYPTED_CHUNK_BYTES)
        try:
            return self._box.decrypt(file.read(_ENCRYPTED_CHUNK_BYTES), _nonce(random_bytes, index, chunk_count(size)))
        except (CryptoError, ValueError) as error:
            raise StorageError(StorageFault.WRONG_DIGEST, "an encrypted artifact is damaged") from error


def herd_key(text: str) -> bytes:
    """The key in the setting `artifact_key`: 32 bytes in base64. Raises `ValueError` for another text."""
    key = base64.b64decode(text, validate=True)
    if len(key) != SecretBox.KEY_SIZE:
        raise ValueError(f"it has {len(key)} bytes, not {SecretBox.KEY_SIZE}")
    return key


def _nonce(random_bytes: bytes, index: int, count: int) -> bytes:
    return random_bytes + index.to_bytes(7, "big") + bytes([index == count - 1])
