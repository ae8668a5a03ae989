"""What a subscription is to the broker: a durable consumer in one of its project's places. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Subscribe
from sandherd.contracts.subjects import PREFIX
from sandherd.contracts.subscriptions import PLACES, consumer_name

NAME: Final = "sandherd-name"
TYPES: Final = "sandherd-types"
"""What the consumer's metadata says of it: the name it was asked for by, and the types, between commas."""
MOST_UNACKNOWLEDGED: Final = 1000
MOST_WAITING: Final = 16
"""Maximum pull requests of a subscription that wait; the broker repeats an idle heartbeat for each."""
SHORTEST: Final = 0.1
LONGEST: Final[Mapping[str, float]] = {"ack_wait_seconds": 86_400, "idle_seconds": 366 * 86_400}
"""The bounds of a subscription's terms, in seconds: the broker has a timer for each."""
_NANOSECONDS: Final = 1_000_000_000
_DOMAINS: Final = {name.partition(".")[0] for name in EVENTS}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms subscriptions are given: how many to a project, and for how long, in seconds."""

    most: int
    ack_wait: float
    idle: float


def check_project(project: str) -> None:
    """Raise `ContractError` for all projects at once: no consumer may show one project's events to another's."""
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a subscription is of one project", field="project", remedy="name it with --project"
        )


def check_terms(terms: Terms) -> None:
    """Raise `ContractError` for terms that would keep the broker busy, or that it can't count in."""
    for field, asked in (("ack_wait_seconds", terms.ack_wait), ("idle_seconds", terms.idle)):
        if not SHORTEST <= asked <= LONGEST[field]:
            told = f"{field}: {asked:g} s is not between {SHORTEST:g} and {LONGEST[field]:g} s"
            raise ContractError(Code.INVALID_FIELD, told, field=field)


def chosen_types(types: Sequence[str]) -> list[str]:
    """The types that are meant, each once and in order, without those that a whole domain covers.

    Raises `ContractError` for what is neither a type nor a domain of this version.
    """
    for name in types:
        if name not in EVENTS and name not in _DOMAINS:
            raise ContractError(
                Code.INVALID_FIELD,
                f"there is no event {name[:60]!r}",
                field="types",
                remedy="see docs/events.md for the types, and for the domains that they begin with",
            )
    return sorted({name for name in types if name in _DOMAINS or name.partition(".")[0] not in types})


def filters(project: str, types: Sequence[str]) -> list[str]:
    """The subjects that a consumer of this project hears; `types` are `chosen_types`."""
    if not types:
        return [f"{PREFIX}.event.{project}.>"]
    return [f"{PREFIX}.event.{project}.*.{name}" + (".*" if name in _DOMAINS else "") for name in types]


def places_for(name: str) -> list[int]:
    """In which order places are tried for a name.

    A name comes back to its own place, and so seldom to that of another, whose readers may not have noticed its end.
    """
    first = crc32(name.encode()) % len(PLACES)
    return [*PLACES[first:], *PLACES[:first]]


def free_place(name: str, taken: Collection[int], terms: Terms) -> int:
    """The place for a new subscription. Raises `ContractError` (`refused`) if the project has as many as it may."""
    if len(taken) >= min(terms.most, len(PLACES)):
        raise ContractError(
            Code.REFUSED,
            f"the project has {len(taken)} subscriptions, which is as many as it may",
            remedy="take one away that is not needed: `sandherd subscriptions list`, then `… delete`",
        )
    return next(place for place in places_for(name) if place not in taken)


def creation(question: Subscribe, project: str, place: int, terms: Terms) -> dict[str, Any]:
    """The broker's request for the consumer: made if its place is free, and never changed."""
    types = chosen_types(question.types)
    consumer = consumer_name(project, place)
    config = {
        "name": consumer,
        "durable_name": consumer,
        "description": f"subscription {question.name} of {project}",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": int(terms.ack_wait * _NANOSECONDS),
        "max_deliver": -1,
        "max_ack_pending": MOST_UNACKNOWLEDGED,
        "max_waiting": MOST_WAITING,
        "inactive_threshold": int(terms.idle * _NANOSECONDS),
        "filter_subjects": filters(project, types),
        "metadata": {NAME: question.name, TYPES: ",".join(types)},
    }
    return {"config": config | _start(question.start), "action": "create"}


def _start(start: str | int) -> dict[str, Any]:
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"deliver_policy": start}
