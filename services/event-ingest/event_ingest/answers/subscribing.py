"""`subscriptions`, `subscribe`, `unsubscribe`: consumers on EVENTS for whoever may not make any.

The broker is the only record of them. Replicas of this service need no lock: a consumer is made only where none is, and
of two with one name that were made at the same moment the second one goes.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.js.api import ConsumerInfo

from event_ingest.answers.reaching import broker_away
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError, RefusedError
from sandherd.bus.service import Asked, Service
from sandherd.bus.subscription_consumers import NAME, TYPES, Terms, check_project, chosen_types, free_place, places_for
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    AskSubscriptions,
    CreateConsumer,
    DeleteConsumer,
    Request,
    Subscribe,
    Subscription,
    SubscriptionList,
    Unsubscribe,
    Unsubscribed,
)
from sandherd.contracts.subscriptions import PLACES, STREAM, consumer_name

_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, BusError, TimeoutError, OSError)

Found = Mapping[int, ConsumerInfo]


class Subscriptions:
    """The subscriptions of every project, as the broker has them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        settings = service.settings
        self._terms = Terms(
            most=settings.subscriptions_per_project,
            ack_wait=settings.subscription_ack_wait,
            idle=settings.subscription_idle,
        )

    async def answer_list(self, asked: Asked[AskSubscriptions]) -> SubscriptionList:
        """All of a project, by name."""
        check_project(asked.project)
        found = [view(info) for info in (await self._all(asked.project)).values()]
        return SubscriptionList(subscriptions=sorted(found, key=lambda one: one.name), most=self._terms.most)

    async def answer_subscribe(self, asked: Asked[Subscribe]) -> Subscription:
        """Make one, or find it made. Raises `ContractError`."""
        question, project = asked.request, asked.project
        check_project(project)
        types = chosen_types(question.types)
        for _ in PLACES:
            found = await self._all(project)
            if own := named(found, question.name):
                return _same(view(own[0]), types)
            await self._create(question, project, free_place(question.name, found, self._terms))
            await self._keep_first(question.name, project)
        raise ContractError(Code.UNAVAILABLE, "others subscribe at this very moment", remedy="ask again")

    async def answer_unsubscribe(self, asked: Asked[Unsubscribe]) -> Unsubscribed:
        """Take one away. Raises `ContractError` (`not_found`)."""
        name, project = asked.request.name, asked.project
        check_project(project)
        own = named(await self._all(project), name)
        if not own:
            raise ContractError(
                Code.NOT_FOUND,
                f"{project} has no subscription {name}",
                field="name",
                remedy="see `sandherd subscriptions list`",
            )
        for info in own:
            await self._delete(info, project)
        return Unsubscribed(name=name, waiting=own[0].num_pending or 0)

    async def _create(self, question: Subscribe, project: str, place: int) -> None:
        """Have the spawner create the consumer, unless somebody else has made one there meanwhile."""
        request = CreateConsumer(
            place=place,
            name=question.name,
            types=question.types,
            start=question.start,
            ack_wait_seconds=self._terms.ack_wait,
            idle_seconds=self._terms.idle,
        )
        await self._ask(request, project)

    async def _keep_first(self, name: str, project: str) -> None:
        """Of several with this name, which other replicas made at the same moment, let one stay: the same for all."""
        for info in named(await self._all(project), name)[1:]:
            await self._delete(info, project)

    async def _all(self, project: str) -> Found:
        """The project's consumers, by their place."""
        found = await asyncio.gather(*[self._look(consumer_name(project, place)) for place in PLACES])
        return {place: info for place, info in zip(PLACES, found, strict=True) if info is not None}

    async def _look(self, consumer: str) -> ConsumerInfo | None:
        try:
            info: ConsumerInfo = await self._bus.js.consumer_info(STREAM, consumer)
            return info
        except nats.js.errors.NotFoundError:
            return None
        except _UNANSWERED as error:
            raise broker_away(error) from error

    async def _delete(self, info: ConsumerInfo, project: str) -> None:
        """Have the spawner delete it; another replica may have been first."""
        place = next(place for place in PLACES if consumer_name(project, place) == info.name)
        await self._ask(DeleteConsumer(place=place), project)

    async def _ask(self, request: Request[Any], project: str) -> None:
        try:
            await self._bus.ask(request, project)
        except RefusedError as error:
            raise ContractError(error.problem.code, error.problem.message, remedy=error.problem.remedy) from error
        except _UNANSWERED as error:
            raise ContractError(
                Code.UNAVAILABLE,
                f"the spawner, which creates and deletes consumers, does not answer ({type(error).__name__})",
                remedy="see `sandherd status`",
            ) from error

    @property
    def _bus(self) -> Bus:
        return self._service.bus


def named(found: Found, name: str) -> list[ConsumerInfo]:
    """The consumers with this subscription's name, the one first that stays if there are several."""
    own = (found[place] for place in places_for(name) if place in found)
    return [info for info in own if (info.config.metadata or {}).get(NAME) == name]


def view(info: ConsumerInfo) -> Subscription:
    """A subscription as people see it."""
    said = info.config.metadata or {}
    return Subscription(
        name=said.get(NAME, info.name),
        stream=STREAM,
        consumer=info.name,
        types=[name for name in said.get(TYPES, "").split(",") if name],
        created_at=info.created.astimezone(UTC),
        waiting=info.num_pending or 0,
        unacknowledged=info.num_ack_pending or 0,
        most_unacknowledged=max(0, info.config.max_ack_pending or 0),
        ack_wait_seconds=info.config.ack_wait or 0,
        idle_seconds=info.config.inactive_threshold or 0,
    )


def _same(found: Subscription, types: list[str]) -> Subscription:
    """The subscription that is there, if it is the one asked for."""
    if found.types == types:
        return found
    raise ContractError(
        Code.CONFLICT,
        f"{found.name} is there, with {', '.join(found.types) or 'all types'}",
        field="types",
        remedy="take it away first, or use another name",
    )
