"""Signatures by an SSH key, as git writes them into commits (`PROTOCOL.sshsig` of OpenSSH). Pure, except for one file.

They are computed in this process: the key is in no argument, environment or other process, and no ssh-keygen is needed.
Only keys with deterministic signatures are accepted, so that a step that is repeated makes the same commit.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha512
from pathlib import Path
from typing import Any, Final

from spawner.repositories.git import GitError, GitFault

_MAGIC: Final = b"SSHSIG"
_VERSION: Final = 1
_NAMESPACE: Final = b"git"
_HASH: Final = b"sha512"
_COLUMNS: Final = 70
_MAX_FILE: Final = 64 * 1024
Sign = Callable[[bytes], bytes]
"""Returns the armored signature of a content. Each line ends with a line feed."""


def read_signing_key(file: Path) -> Sign:
    """A function that signs with the key in this file: a key of ssh-keygen(1) without a passphrase.

    Raises `GitError` (unavailable) if the key can't be used: commits wait for it. No message contains its content.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with file.open("rb") as opened:
            key = load_ssh_private_key(opened.read(_MAX_FILE), password=None)
        return _signing(key)
    except Exception as error:  # noqa: BLE001  # of the file or cryptography; its text may have parts of the key
        kind = type(error).__name__
    problem = f"the file of SANDHERD_SIGNING_KEY is not an Ed25519 or RSA key of OpenSSH without a passphrase ({kind})"
    raise GitError(GitFault.UNAVAILABLE, problem, of_machine=True)


def _signing(key: Any) -> Sign:
    """A function that signs with an Ed25519 or RSA key. Raises `ValueError` for other kinds of keys."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA512

    if isinstance(key, Ed25519PrivateKey):
        return _armored(key, b"ssh-ed25519", key.sign)
    if isinstance(key, RSAPrivateKey):
        return _armored(key, b"rsa-sha2-512", lambda content: key.sign(content, PKCS1v15(), SHA512()))
    raise ValueError("neither an Ed25519 nor an RSA key")


def _armored(key: Any, algorithm: bytes, raw: Callable[[bytes], bytes]) -> Sign:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: bytes = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    blob = b64decode(public.split(b" ")[1])

    def sign(content: bytes) -> bytes:
        fields = _string(_NAMESPACE) + _string(b"") + _string(_HASH)
        signature = raw(_MAGIC + fields + _string(sha512(content).digest()))
        made = _MAGIC + _VERSION.to_bytes(4) + _string(blob) + fields + _string(_string(algorithm) + _string(signature))
        text = b64encode(made)
        rows = [text[at : at + _COLUMNS] for at in range(0, len(text), _COLUMNS)]
        return b"\n".join((b"-----BEGIN SSH SIGNATURE-----", *rows, b"-----END SSH SIGNATURE-----", b""))

    return sign


def _string(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content
