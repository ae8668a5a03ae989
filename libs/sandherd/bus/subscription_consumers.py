"""Consumers of subscriptions. Each is a durable consumer, named after one of its project's numbered places. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from zlib import crc32

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.event_types import DOMAINS, chosen_types
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Subscribe
from sandherd.contracts.subjects import PREFIX
from sandherd.contracts.subscriptions import PLACES, consumer_name

NAME: Final = "sandherd-name"
TYPES: Final = "sandherd-types"
ENTITIES: Final = "sandherd-entities"
"""Keys of the consumer's metadata: the subscription's name, and its event types and entities, separated by commas."""
MAX_FILTERS: Final = 256
"""Maximum number of a consumer's filter subjects."""
MAX_UNACKNOWLEDGED: Final = 1000
"""Maximum number of a subscription's events that are delivered and not acknowledged."""
MAX_WAITING: Final = 16
"""Maximum number of waiting pull requests of a subscription. The broker sends idle heartbeats for each."""
MIN_SECONDS: Final = 0.1
MAX_SECONDS: Final[Mapping[str, float]] = {"ack_wait_seconds": 86_400, "idle_seconds": 366 * 86_400}
"""The minimum and the maximum of a subscription's times, because the broker has a timer for each of them."""
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class SubscriptionTerms:
    """Limits of subscriptions: the maximum number per project, and the ack wait and idle time of each in seconds."""

    limit: int
    ack_wait: float
    idle: float


def check_project(project: str) -> None:
    """Raise `ContractError` for `fleet`, which means all projects, because a consumer is for one project."""
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a subscription is for one project", field="project", remedy="name one project"
        )


def check_terms(terms: SubscriptionTerms) -> None:
    """Raise `ContractError` for times that are so short that they overload the broker, or too long for its timers."""
    for field, value in (("ack_wait_seconds", terms.ack_wait), ("idle_seconds", terms.idle)):
        if not MIN_SECONDS <= value <= MAX_SECONDS[field]:
            problem = f"{field}: {value:g} s is not between {MIN_SECONDS:g} and {MAX_SECONDS[field]:g} s"
            raise ContractError(Code.INVALID_FIELD, problem, field=field)


def filters(project: str, types: Sequence[str], entities: Sequence[str] = ()) -> list[str]:
    """The filter subjects of a consumer of this project. `types` come from `chosen_types`; `entities` are safe names.

    Raises `ContractError` for too many combinations of both.
    """
    if len(types) * len(entities) > MAX_FILTERS:
        raise ContractError(
            Code.INVALID_FIELD,
            f"entities: {len(types)} types of {len(entities)} entities are over {MAX_FILTERS} filters",
            field="entities",
            remedy="name fewer of them, or a whole domain instead of its types",
        )
    endings = [name + (".*" if name in DOMAINS else "") for name in types] or [">"]
    if not types and not entities:
        return [f"{PREFIX}.event.{project}.>"]
    return [f"{PREFIX}.event.{project}.{entity}.{ending}" for entity in entities or ["*"] for ending in endings]


def places_for(name: str) -> list[int]:
    """All places, in the order in which they are tried for a subscription of this name.

    A recreated subscription gets its former place if that is free. So it seldom gets the place of another subscription
    that was deleted, whose readers may still pull from it.
    """
    first = crc32(name.encode()) % len(PLACES)
    return [*PLACES[first:], *PLACES[:first]]


def free_place(name: str, taken: Collection[int], terms: SubscriptionTerms) -> int:
    """The place for a new subscription. Raises `ContractError` (`refused`) if the project has the maximum."""
    if len(taken) >= min(terms.limit, len(PLACES)):
        raise ContractError(
            Code.REFUSED,
            f"the project has {len(taken)} subscriptions, which is the maximum",
            remedy="delete one that is not needed",
        )
    return next(place for place in places_for(name) if place not in taken)


def creation(request: Subscribe, project: str, place: int, terms: SubscriptionTerms) -> dict[str, Any]:
    """The request body that creates the consumer if its place is free, and never changes an existing one."""
    consumer = consumer_name(project, place)
    config = {
        "name": consumer,
        "durable_name": consumer,
        "description": f"subscription {request.name} of {project}",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": int(terms.ack_wait * _NANOSECONDS),
        "max_deliver": -1,
        "max_ack_pending": MAX_UNACKNOWLEDGED,
        "max_waiting": MAX_WAITING,
        "inactive_threshold": int(terms.idle * _NANOSECONDS),
        **_selection(request, project),
    }
    return {"config": config | _start(request.start), "action": "create"}


def update(request: Subscribe, project: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The request body that changes which events an existing consumer selects, and leaves everything else unchanged."""
    return {"config": {**config, **_selection(request, project)}, "action": "update"}


def _selection(request: Subscribe, project: str) -> dict[str, Any]:
    types, entities = chosen_types(request.types), sorted(set(request.entities))
    return {
        "filter_subjects": filters(project, types, entities),
        "metadata": {NAME: request.name, TYPES: ",".join(types), ENTITIES: ",".join(entities)},
    }


def _start(start: str | int | datetime) -> dict[str, Any]:
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    if isinstance(start, datetime):
        return {"deliver_policy": "by_start_time", "opt_start_time": start.astimezone(UTC).isoformat()}
    return {"deliver_policy": start}
