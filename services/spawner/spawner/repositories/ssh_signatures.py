"""Signatures by an SSH key, as git writes them into commits (`PROTOCOL.sshsig` of OpenSSH). Pure, except for one file.

They are computed in this process: the key is in no argument, environment or other process, and no ssh-keygen is needed.
Only keys with deterministic signatures are accepted, so that a repeated step creates the same commit.
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
_LINE_CHARACTERS: Final = 70
_MAX_FILE_BYTES: Final = 64 * 1024
Sign = Callable[[bytes], bytes]
"""Returns the armored signature of the content. Each line ends with a line feed."""


def read_signing_key(file: Path) -> Sign:
    """A function that signs with the key in this file: a key of ssh-keygen(1) without a passphrase.

    Raises `GitError` (unavailable) if the key can't be used, so that commits wait. Its message has no part of the key.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with file.open("rb") as content:
            key = load_ssh_private_key(content.read(_MAX_FILE_BYTES), password=None)
        return _signer_for(key)
    except Exception as error:  # noqa: BLE001  # any error of the file or cryptography; its text may have parts of the key
        kind = type(error).__name__
    problem = f"the file of SANDHERD_SIGNING_KEY is not an Ed25519 or RSA key of OpenSSH without a passphrase ({kind})"
    raise GitError(GitFault.UNAVAILABLE, problem, of_machine=True)


def _signer_for(key: Any) -> Sign:
    """A function that signs with an Ed25519 or RSA key. Raises `ValueError` for other kinds of keys."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA512

    if isinstance(key, Ed25519PrivateKey):
        return _armored_signer(key, b"ssh-ed25519", key.sign)
    if isinstance(key, RSAPrivateKey):
        return _armored_signer(key, b"rsa-sha2-512", lambda content: key.sign(content, PKCS1v15(), SHA512()))
    raise ValueError("neither an Ed25519 nor an RSA key")


def _armored_signer(key: Any, algorithm: bytes, raw: Callable[[bytes], bytes]) -> Sign:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: bytes = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    blob = b64decode(public.split(b" ")[1])

    def sign(content: bytes) -> bytes:
        fields = _ssh_string(_NAMESPACE) + _ssh_string(b"") + _ssh_string(_HASH)
        signature = raw(_MAGIC + fields + _ssh_string(sha512(content).digest()))
        signature_blob = (
            _MAGIC
            + _VERSION.to_bytes(4)
            + _ssh_string(blob)
            + fields
            + _ssh_string(_ssh_string(algorithm) + _ssh_string(signature))
        )
        text = b64encode(signature_blob)
        rows = [text[at : at + _LINE_CHARACTERS] for at in range(0, len(text), _LINE_CHARACTERS)]
        return b"\n".join((b"-----BEGIN SSH SIGNATURE-----", *rows, b"-----END SSH SIGNATURE-----", b""))

    return sign


def _ssh_string(content: bytes) -> bytes:
    """A string in the encoding of SSH (RFC 4251): its length, and its content."""
    return len(content).to_bytes(4) + content
