"""The rules of messages' names: a name is one message of its project. Pure; `message_names` does the storage."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from pydantic import BaseModel, ConfigDict

from message_relay.approval_rules import LONGEST_WAIT
from sandherd.contracts.commands import AnswerApproval, SendMessage
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.model import Moment
from sandherd.contracts.names import created_at

RESERVED: Final = timedelta(days=1)
"""How long a name stays reserved after its message expires."""
RESERVED_SHORT: Final = timedelta(minutes=10)
"""The same while the project has used more than half of its names: still longer than the broker's duplicate windows."""
MAX_NAMES: Final = 50_000
"""Maximum of reserved names of a project: at most 400 bytes each, they take less than a tenth of the bucket."""
MAX_FILL: Final = 0.75
"""The share of the bucket's maximum size that messages may use; the rest is for answers to approvals."""
_CLOCKS: Final = timedelta(minutes=5)
"""By how much the clock of a client that creates a name may be ahead of the broker's."""


class NameClaim(BaseModel):
    """Which command has a name: a digest of its content, and its sequence and time in COMMANDS."""

    model_config = ConfigDict(frozen=True)

    digest: str
    sequence: int
    at: Moment
    unique: bool = False
    """Whether no other message can ever have this name."""


class NameUse(Enum):
    """What a command's name is."""

    FREE = "free"
    OWN = "own"
    """This command has it, and is handled again."""
    REPEATED = "repeated"
    """An earlier command with the same content has it: both are one message."""
    TAKEN = "taken"
    """A command with another content has it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """For how long a name is reserved, and whether it can't be used again while it may pass for a new one."""

    seconds: int
    whole: bool


def claim_of(command: SendMessage | AnswerApproval, sequence: int, at: datetime) -> NameClaim:
    """The claim of a command to its name. Fields at their defaults do not count, so that versions agree."""
    content = f"{command.type}\0{command.model_dump_json(exclude_defaults=True)}"
    return NameClaim(digest=hashlib.sha256(content.encode()).hexdigest()[:32], sequence=sequence, at=at)


def use_of(wanted: NameClaim, found: NameClaim | None) -> NameUse:
    """What the name is to a command that wants it."""
    if found is None:
        return NameUse.FREE
    if found.digest != wanted.digest:
        return NameUse.TAKEN
    return NameUse.OWN if found.sequence == wanted.sequence else NameUse.REPEATED


def is_same(claim: NameClaim, other: NameClaim | None) -> bool:
    """Whether both are of one command."""
    return other is not None and (claim.digest, claim.sequence) == (other.digest, other.sequence)


def taken(name: str) -> ContractError:
    """Why a command whose name is taken is refused."""
    return ContractError(
        Code.CONFLICT,
        f"data.message: another message {name} exists in this project",
        field="data.message",
        remedy="choose a new name",
    )


def reservation(command: SendMessage | AnswerApproval, names: int) -> Reservation:
    """How long the name is reserved, by the number of names that its project has."""
    waits = LONGEST_WAIT if isinstance(command, AnswerApproval) else timedelta(seconds=command.expires_seconds)
    whole = names < MAX_NAMES // 2
    return Reservation(int((waits + (RESERVED if whole else RESERVED_SHORT)).total_seconds()), whole)


def is_unique(name: str, at: datetime, *, reserved: Reservation) -> bool:
    """Whether no other message can have this name: it was created just now, and stays reserved while it looks new.

    Names that a client chooses may be used again once they are not reserved any more.
    """
    created = created_at(name)
    return reserved.whole and created is not None and -_CLOCKS <= at - created <= RESERVED - 2 * _CLOCKS


def excess(project: str, names: int, fill: float) -> str | None:
    """Why no further name can be reserved for a message, for users to read; None if one can."""
    if names >= MAX_NAMES:
        return (
            f"{MAX_NAMES} names of messages of project {project} are reserved already; send it again when some are free"
        )
    return "the bucket of messages' names is nearly full; send it again later" if fill >= MAX_FILL else None
