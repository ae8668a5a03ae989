"""Changes to streams on behalf of services that may not make them: each request is checked, then made by the spawner.

JetStream checks neither the reply subject of a request nor the subjects that its body names. A service that could
create a consumer, for example, could have any message of the stream delivered to any subject, with the broker's rights.
So only the spawner's credential may send such requests, and the bodies are built here, from typed fields.
"""

import json
from typing import Any, Final

import nats.errors
import nats.js.errors
from pydantic import BaseModel

from sandherd.bus.answering import Answerer, Asked
from sandherd.bus.errors import BusError
from sandherd.bus.fullness import handled, read_fill
from sandherd.bus.purge_limits import artifacts_refusal, events_refusal
from sandherd.bus.service import Service
from sandherd.bus.subscription_consumers import Terms, check_project, check_terms, creation
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    ConsumerCreated,
    ConsumerDeleted,
    CreateConsumer,
    DeadDeleted,
    DeleteConsumer,
    DeleteDead,
    PurgeArtifacts,
    Purged,
    PurgeEvents,
    Request,
    Subscribe,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.contracts.subscriptions import PLACES, STREAM, consumer_name
from sandherd.telemetry import logs

_EVENTS: Final = "EVENTS"
_ARTIFACTS: Final = "ARTIFACTS"
_DEAD: Final = "DEAD"
_AT_ONCE: Final = 16
"""Requests of each kind that are processed at the same time."""
_EXISTS: Final = 10148
"""The broker's code for a consumer that is there already, and is another."""
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, BusError, TimeoutError, OSError)
_log: Final = logs.get("streams")


class StreamAdmin:
    """Answers the requests of `contracts.requests.stream_admin`; every replica of the spawner does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def register(self) -> None:
        """Have the service answer them all, once it runs."""
        answers: dict[type[Request[Any]], Answerer] = {
            CreateConsumer: self.create_consumer,
            DeleteConsumer: self.delete_consumer,
            PurgeEvents: self.purge_events,
            PurgeArtifacts: self.purge_artifacts,
            DeleteDead: self.delete_dead,
        }
        for request, answer in answers.items():
            self._service.answer(request, answer, at_once=_AT_ONCE)

    async def create_consumer(self, asked: Asked[CreateConsumer]) -> BaseModel:
        """Create a pull consumer on events of the project alone. Raises `ContractError`."""
        request, project = asked.request, asked.project
        check_project(project)
        _check_place(request.place)
        terms = Terms(most=len(PLACES), ack_wait=request.ack_wait_seconds, idle=request.idle_seconds)
        check_terms(terms)
        question = Subscribe(name=request.name, types=request.types, start=request.start)
        body = {"stream_name": STREAM} | creation(question, project, request.place, terms)
        subject = f"{self._service.bus.api}.CONSUMER.CREATE.{STREAM}.{consumer_name(project, request.place)}"
        try:
            refusal = json.loads(await self._service.bus.request(subject, json.dumps(body).encode())).get("error")
        except _UNANSWERED as error:
            raise _unavailable(error) from error
        if refusal and refusal.get("err_code") != _EXISTS:
            raise ContractError(
                Code.UNAVAILABLE,
                f"the broker makes no consumer: {refusal.get('description')}",
                remedy="see how many there are on EVENTS; the broker's limit is 1000",
            )
        return ConsumerCreated(created=refusal is None)

    async def delete_consumer(self, asked: Asked[DeleteConsumer]) -> BaseModel:
        """Delete the consumer in a place of the project. Raises `ContractError`."""
        check_project(asked.project)
        _check_place(asked.request.place)
        try:
            await self._service.bus.js.delete_consumer(STREAM, consumer_name(asked.project, asked.request.place))
        except nats.js.errors.NotFoundError:
            return ConsumerDeleted(deleted=False)
        except _UNANSWERED as error:
            raise _unavailable(error) from error
        return ConsumerDeleted(deleted=True)

    async def purge_events(self, asked: Asked[PurgeEvents]) -> BaseModel:
        """Remove events that every durable consumer has acknowledged, if the stream is full enough."""
        bus, below = self._service.bus, asked.request.below
        try:
            fill = await read_fill(bus, _EVENTS)
            _allow(events_refusal(fill, await handled(bus, fill), below), "below")
            await bus.js.purge_stream(_EVENTS, seq=below)
            return Purged(messages=max(0, fill.messages - (await read_fill(bus, _EVENTS)).messages))
        except _UNANSWERED as error:
            raise _unavailable(error) from error

    async def purge_artifacts(self, asked: Asked[PurgeArtifacts]) -> BaseModel:
        """Remove the oldest pieces of one sandbox, if the stream is full enough."""
        bus, request = self._service.bus, asked.request
        check_project(asked.project)
        try:
            fill = await read_fill(bus, _ARTIFACTS)
            _allow(artifacts_refusal(fill, request.keep), "keep")
            subject = ARTIFACT.pattern({"project": asked.project, "sandbox": request.sandbox})
            await bus.js.purge_stream(_ARTIFACTS, subject=subject, keep=request.keep)
            return Purged(messages=max(0, fill.messages - (await read_fill(bus, _ARTIFACTS)).messages))
        except _UNANSWERED as error:
            raise _unavailable(error) from error

    async def delete_dead(self, asked: Asked[DeleteDead]) -> BaseModel:
        """Delete a dead letter."""
        try:
            await self._service.bus.js.get_msg(_DEAD, asked.request.number)
            await self._service.bus.js.delete_msg(_DEAD, asked.request.number)
        except nats.js.errors.NotFoundError:
            return DeadDeleted(deleted=False)
        except _UNANSWERED as error:
            raise _unavailable(error) from error
        return DeadDeleted(deleted=True)


def _check_place(place: int) -> None:
    if place not in PLACES:
        raise ContractError(Code.INVALID_FIELD, f"a project has no place {place} for a subscription", field="place")


def _allow(refusal: str | None, field: str) -> None:
    if refusal is not None:
        _log.warning("refused to purge", reason=refusal)
        raise ContractError(Code.REFUSED, refusal, field=field)


def _unavailable(error: Exception) -> ContractError:
    return ContractError(
        Code.UNAVAILABLE, f"the broker does not answer ({type(error).__name__})", remedy="see `sandherd status`"
    )
