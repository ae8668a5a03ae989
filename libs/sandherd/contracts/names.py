"""Names and identifiers: what may be a token of a subject, and how new names and ids are created or derived."""

import hashlib
import hmac
import json
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

import uuid_utils.compat as uuid_utils
from pydantic import StringConstraints

from sandherd.contracts.patterns import explained

SAFE_NAME_PATTERN: Final = explained(
    r"^[a-z0-9][a-z0-9-]{0,62}$",
    "1 to 63 lower-case letters, digits or dashes, starting with a letter or digit",
)
_SAFE_NAME: Final = re.compile(SAFE_NAME_PATTERN)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_BASE32_LETTERS: Final = 26
"""The number of characters after the prefix of a name that `new_name` returns."""

FLEET: Final = "fleet"
"""Used in place of the name of a project or entity; it stands for all of them. No project may have this name."""

TASK_PREFIX: Final = "task-"
"""The prefix of names of tasks that clients generate; users may choose other names."""
BATCH_PREFIX: Final = "batch-"
"""The prefix of names of batches of tasks."""
SANDBOX_PREFIX: Final = "sbx-"
UPLOAD_PREFIX: Final = "upl-"
"""The prefix of the names of uploads, which no other artifact has."""
JOINER_SUFFIX: Final = "-join"
"""The suffix in the reply subjects of a sandbox's joiner, after the name of the sandbox."""

ENV_NAME_PATTERN: Final = explained(
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", "1 to 128 letters, digits or underscores, not starting with a digit"
)
"""Lower case is permitted because programs read variables such as `http_proxy` only in lower case."""
EnvName = Annotated[str, StringConstraints(pattern=ENV_NAME_PATTERN)]
"""The name of an environment variable."""

SafeName = Annotated[str, StringConstraints(pattern=SAFE_NAME_PATTERN)]
"""A project, task or sandbox name: lower-case letters, digits and dashes, 1 to 63 characters."""


class UnsafeNameError(ValueError):
    """A name that may not be a token of a subject: it could make the subject match another project or entity."""

    def __init__(self, name: object, field: str = "name") -> None:
        super().__init__(
            f"{field} {str(name)[:80]!r} is not safe: use 1 to 63 lower-case letters, digits or dashes, "
            "starting with a letter or digit"
        )
        self.field = field


def safe_name(name: str, field: str = "name") -> str:
    """Return `name` unchanged if it may be one token of a subject; raise `UnsafeNameError` otherwise."""
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
        raise UnsafeNameError(name, field)
    return name


def is_safe_name(name: str) -> bool:
    """Whether a name may be a token of a subject."""
    return _SAFE_NAME.fullmatch(name) is not None


def safe_sandbox(name: str) -> str:
    """Return `name` if it is a sandbox's name that may be in a credential. Raises `UnsafeNameError`.

    It begins with `sbx-`, so that no sandbox can read a service's replies, and does not end with `-join`, so that no
    worker can read the replies of another sandbox's joiner.
    """
    if not safe_name(name, "sandbox").removeprefix(SANDBOX_PREFIX) or not name.startswith(SANDBOX_PREFIX):
        raise UnsafeNameError(name, "sandbox")
    if name.endswith(JOINER_SUFFIX):
        raise UnsafeNameError(name, "sandbox")
    return name


def new_uuid() -> UUID:
    """A UUIDv7 (RFC 9562): ordered by the millisecond in which it was created."""
    return uuid_utils.uuid7()


def new_uuid_at(at: datetime) -> UUID:
    """A new UUIDv7 with the given time, for pure code that gets the time as an argument."""
    return uuid_at(at, secrets.token_bytes(10))


def derived_uuid(at: datetime, *facts: object) -> UUID:
    """A UUIDv7 that depends only on the time and the facts, for names that have to be computed again later.

    Any program can compute it. The ids of events are therefore not derived in this way, but by `DerivedIds` with a
    secret key.
    """
    return uuid_at(at, hashlib.sha256("\0".join(map(str, facts)).encode()).digest())


def uuid_at(at: datetime, bits: bytes) -> UUID:
    """The UUIDv7 with `at`'s milliseconds and, for the random bits of RFC 9562 §5.7, the first 10 bytes of `bits`."""
    milliseconds = (at - _EPOCH) // timedelta(milliseconds=1) & ((1 << 48) - 1)
    value = milliseconds << 80 | int.from_bytes(bits[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


def new_name(prefix: str) -> str:
    """A new safe name, ordered by time: `task-` and 26 characters of Crockford's base 32 over a UUIDv7."""
    return safe_name(f"{prefix}-{_base32(new_uuid().int)}")


def created_at(name: str) -> datetime | None:
    """The time at which `new_name` created this name; None for any other name, which a program may have chosen."""
    letters = name.rpartition("-")[2]
    if len(letters) != _BASE32_LETTERS or not set(letters) <= set(_CROCKFORD):
        return None
    value = sum(_CROCKFORD.index(letter) << 5 * at for at, letter in enumerate(reversed(letters)))
    if value >> 128 or UUID(int=value).version != 7:
        return None
    return _EPOCH + timedelta(milliseconds=value >> 80)


def _base32(value: int) -> str:
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


class DerivedIds:
    """UUIDv7s derived from facts with a secret key, so that the event of a repeated step has the same id.

    It is also the same if another replica repeats the step. A program that knows the id of an event before it is
    published can publish another event under that id first, and the broker then drops the event as a duplicate. So the
    key has to be a secret of the service that derives the ids.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def derive(self, at: datetime, *facts: object) -> UUID:
        """The id for this time and these facts. Another key gives an unrelated id.

        The time bits are `at`'s milliseconds; the random bits of RFC 9562 §5.7 are an HMAC-SHA-256 of the facts.
        """
        document = json.dumps([str(fact) for fact in facts]).encode()  # different lists of facts give different texts
        return uuid_at(at, hmac.digest(self._key, document, "sha256"))
