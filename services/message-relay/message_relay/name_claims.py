"""Rules of the names of messages: a name identifies one message of its project. Pure; `message_names` stores them."""

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
"""How long a name stays reserved after its message expires if the project has used half of its names. This is longer
than the broker's duplicate windows."""
MAX_NAMES: Final = 50_000
"""Maximum of reserved names of a project. With at most 400 bytes each they use less than a tenth of the bucket."""
MAX_FILL: Final = 0.75
"""The share of the bucket's maximum size that messages may use; the rest is for answers to approvals."""
_MAX_CLOCK_DIFFERENCE: Final = timedelta(minutes=5)
"""By how much the clock of a client that creates a name may be ahead of the broker's."""


class NameClaim(BaseModel):
    """The claim of a command to a name: a digest of the command's content, and its sequence and time in COMMANDS."""

    model_config = ConfigDict(frozen=True)

    digest: str
    sequence: int
    at: Moment
    unique: bool = False
    """Whether no other message can ever have this name."""


class NameUse(Enum):
    """The relation of a command to the name of its message."""

    FREE = "free"
    OWN = "own"
    """The command has claimed the name before, and is handled again."""
    REPEATED = "repeated"
    """An earlier command with the same content has claimed the name: both are one message."""
    TAKEN = "taken"
    """A command with another content has claimed the name."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """How long a name is reserved, in seconds. `whole` is whether that is the full time, and not the short one."""

    seconds: int
    whole: bool


def claim_of(command: SendMessage | AnswerApproval, sequence: int, at: datetime) -> NameClaim:
    """The claim of a command to its name. The digest omits fields with default values, so that all versions agree."""
    content = f"{command.type}\0{command.model_dump_json(exclude_defaults=True)}"
    return NameClaim(digest=hashlib.sha256(content.encode()).hexdigest()[:32], sequence=sequence, at=at)


def use_of(wanted: NameClaim, found: NameClaim | None) -> NameUse:
    """The relation of a command with the claim `wanted` to a name with the claim `found`."""
    if found is None:
        return NameUse.FREE
    if found.digest != wanted.digest:
        return NameUse.TAKEN
    return NameUse.OWN if found.sequence == wanted.sequence else NameUse.REPEATED


def is_same(claim: NameClaim, other: NameClaim | None) -> bool:
    """Whether both claims belong to the same command."""
    return other is not None and (claim.digest, claim.sequence) == (other.digest, other.sequence)


def taken(name: str) -> ContractError:
    """The refusal of a command whose name is taken."""
    return ContractError(
        Code.CONFLICT,
        f"data.message: another message {name} exists in this project",
        field="data.message",
        remedy="choose a new name",
    )


def reservation(command: SendMessage | AnswerApproval, names: int) -> Reservation:
    """The reservation of a command's name. `names` is the number of names that its project has."""
    waits = LONGEST_WAIT if isinstance(command, AnswerApproval) else timedelta(seconds=command.expires_seconds)
    whole = names < MAX_NAMES // 2
    return Reservation(int((waits + (RESERVED if whole else RESERVED_SHORT)).total_seconds()), whole)


def is_unique(name: str, at: datetime, *, reserved: Reservation) -> bool:
    """Whether no other message can ever have this name, because it contains its time and is recent.

    Such a name stays reserved as long as it counts as recent. Names that users choose may be used again after
    their reservation.
    """
    created = created_at(name)
    return (
        reserved.whole
        and created is not None
        and -_MAX_CLOCK_DIFFERENCE <= at - created <= RESERVED - 2 * _MAX_CLOCK_DIFFERENCE
    )


def excess(project: str, names: int, fill: float) -> str | None:
    """The reason, for users, why no further name can be reserved for a message; None if one can."""
    if names >= MAX_NAMES:
        return (
            f"{MAX_NAMES} names of messages of project {project} are reserved already; send it again when some are free"
        )
    return "the bucket of messages' names is nearly full; send it again later" if fill >= MAX_FILL else None
