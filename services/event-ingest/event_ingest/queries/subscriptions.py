"""`subscriptions`, `subscribe`, `unsubscribe`: consumers on EVENTS for clients, which may not create consumers.

Subscriptions are stored in the broker only. Each is a consumer that is named by a numbered place of its project.
Replicas of this service need no lock: a consumer is created only at a free place, and if two consumers with the same
name were created at the same moment, the second one is deleted.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

import nats.js.errors
from nats.js.api import ConsumerInfo

from event_ingest.queries.stream_reader import broker_unavailable
from event_ingest.queries.subscription_start import check_start
from event_ingest.subscription_activity import active_at, is_read
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError, RefusedError
from sandherd.bus.subscription_consumers import (
    ENTITIES,
    NAME,
    TYPES,
    SubscriptionTerms,
    check_project,
    filters,
    free_place,
    places_for,
)
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.event_types import chosen_types
from sandherd.contracts.requests import (
    CreateConsumer,
    DeleteConsumer,
    ListSubscriptions,
    Request,
    Subscribe,
    Subscription,
    SubscriptionList,
    Unsubscribe,
    UnsubscribeResult,
)
from sandherd.contracts.subscriptions import PLACES, STREAM, consumer_name
from sandherd.service.service import IncomingRequest, Service

_UNAVAILABLE_ERRORS: Final = (*BROKER_ERRORS, BusError)

Consumers = Mapping[int, ConsumerInfo]
"""Consumers of a project, by place."""


class Subscriptions:
    """The subscriptions of every project, as the broker has them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        settings = service.settings
        self._terms = SubscriptionTerms(
            limit=settings.subscriptions_per_project,
            ack_wait=settings.subscription_ack_wait,
            idle=settings.subscription_idle,
        )

    async def list_subscriptions(self, incoming: IncomingRequest[ListSubscriptions]) -> SubscriptionList:
        """All subscriptions of a project, sorted by name."""
        check_project(incoming.project)
        subscriptions = [subscription_view(info) for info in (await self._read_all(incoming.project)).values()]
        return SubscriptionList(
            subscriptions=sorted(subscriptions, key=lambda subscription: subscription.name), most=self._terms.limit
        )

    async def subscribe(self, incoming: IncomingRequest[Subscribe]) -> Subscription:
        """Create a subscription, or return the existing one; with `update`, change its types and entities.

        Raises `ContractError` if the request is invalid or in conflict with the existing subscription, the project has
        the maximum, or the broker or the spawner is unavailable.
        """
        request, project = incoming.request, incoming.project
        check_project(project)
        requested = chosen_types(request.types), sorted(set(request.entities))
        filters(project, *requested)  # raises `ContractError` if there are too many
        # Reads the consumers again after each creation, which has no effect if another request has taken the place.
        for _ in PLACES:
            consumers = await self._read_all(project)
            if same_name := consumers_with_name(consumers, request.name):
                existing = subscription_view(same_name[0])
                if not request.update or (existing.types, existing.entities) == requested:
                    return _check_same(existing, requested)
                await self._create(request, project, _place_of(same_name[0], project))
                continue
            place = free_place(request.name, consumers, self._terms)
            await check_start(self._bus, request.start)
            await self._create(request.model_copy(update={"update": False}), project, place)
            await self._delete_duplicates(request.name, project)
        raise ContractError(Code.UNAVAILABLE, "too many concurrent subscribe requests", remedy="retry")

    async def unsubscribe(self, incoming: IncomingRequest[Unsubscribe]) -> UnsubscribeResult:
        """Delete a subscription. Raises `ContractError` (`not_found`)."""
        name, project = incoming.request.name, incoming.project
        check_project(project)
        same_name = consumers_with_name(await self._read_all(project), name)
        if not same_name:
            raise ContractError(
                Code.NOT_FOUND,
                f"{project} has no subscription {name}",
                field="name",
                remedy="list the project's subscriptions",
            )
        for info in same_name:
            await self._delete(info, project)
        return UnsubscribeResult(name=name, waiting=same_name[0].num_pending or 0)

    async def _create(self, request: Subscribe, project: str, place: int) -> None:
        """Request that the spawner creates or changes the consumer at a place.

        The spawner creates no consumer if another request has created one at this place meanwhile.
        """
        create = CreateConsumer(
            place=place,
            name=request.name,
            types=request.types,
            start=request.start,
            entities=request.entities,
            update=request.update,
            ack_wait_seconds=self._terms.ack_wait,
            idle_seconds=self._terms.idle,
        )
        await self._request_spawner(create, project)

    async def _delete_duplicates(self, name: str, project: str) -> None:
        """If replicas have created several consumers with this name at once, delete all but the first."""
        for info in consumers_with_name(await self._read_all(project), name)[1:]:
            await self._delete(info, project)

    async def _read_all(self, project: str) -> Consumers:
        """The project's consumers, by place."""
        infos = await asyncio.gather(*[self._read_consumer(consumer_name(project, place)) for place in PLACES])
        return {place: info for place, info in zip(PLACES, infos, strict=True) if info is not None}

    async def _read_consumer(self, consumer: str) -> ConsumerInfo | None:
        try:
            info: ConsumerInfo = await self._bus.js.consumer_info(STREAM, consumer)
            return info
        except nats.js.errors.NotFoundError:
            return None
        except _UNAVAILABLE_ERRORS as error:
            raise broker_unavailable(error) from error

    async def _delete(self, info: ConsumerInfo, project: str) -> None:
        """Request that the spawner deletes the consumer, which another replica may have deleted already."""
        await self._request_spawner(DeleteConsumer(place=_place_of(info, project)), project)

    async def _request_spawner(self, request: Request[Any], project: str) -> None:
        try:
            await self._bus.ask(request, project)
        except RefusedError as error:
            raise ContractError(error.problem.code, error.problem.message, remedy=error.problem.remedy) from error
        except _UNAVAILABLE_ERRORS as error:
            raise ContractError(
                Code.UNAVAILABLE,
                f"the spawner, which creates and deletes consumers, does not respond ({type(error).__name__})",
                remedy="check the herd",
            ) from error

    @property
    def _bus(self) -> Bus:
        return self._service.bus


def consumers_with_name(consumers: Consumers, name: str) -> list[ConsumerInfo]:
    """The consumers of the subscription with this name. If there are several, the one that stays is first."""
    candidates = (consumers[place] for place in places_for(name) if place in consumers)
    return [info for info in candidates if (info.config.metadata or {}).get(NAME) == name]


def _place_of(info: ConsumerInfo, project: str) -> int:
    return next(place for place in PLACES if consumer_name(project, place) == info.name)


def subscription_view(info: ConsumerInfo) -> Subscription:
    """A subscription as users see it."""
    metadata = info.config.metadata or {}
    return Subscription(
        name=metadata.get(NAME, info.name),
        stream=STREAM,
        consumer=info.name,
        types=[name for name in metadata.get(TYPES, "").split(",") if name],
        entities=[name for name in metadata.get(ENTITIES, "").split(",") if name],
        created_at=info.created.astimezone(UTC),
        waiting=info.num_pending or 0,
        unacknowledged=info.num_ack_pending or 0,
        most_unacknowledged=max(0, info.config.max_ack_pending or 0),
        ack_wait_seconds=info.config.ack_wait or 0,
        idle_seconds=info.config.inactive_threshold or 0,
        is_read=is_read(info),
        active_at=active_at(info),
    )


def _check_same(existing: Subscription, requested: tuple[list[str], list[str]]) -> Subscription:
    """The existing subscription. Raises `ContractError` if it has other types or entities than requested."""
    if (existing.types, existing.entities) == requested:
        return existing
    about = f" about {', '.join(existing.entities)}" if existing.entities else ""
    raise ContractError(
        Code.CONFLICT,
        f"subscription {existing.name} exists already, with {', '.join(existing.types) or 'all types'}{about}",
        field="types" if existing.types != requested[0] else "entities",
        remedy="set `update` to change it, delete it first, or use another name",
    )
