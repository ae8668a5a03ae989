"""Changes streams and consumers for other services: the spawner checks each request, and then makes the change.

JetStream checks neither the reply subject of a request nor the subjects in its body. For example, a service that may
create a consumer can have any message of the stream delivered to any subject. So only the spawner's credential permits
such requests to JetStream, and their bodies are built here, from typed fields.
"""

import json
from typing import Any, Final

import nats.js.errors
from pydantic import BaseModel

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.errors import BusError
from sandherd.bus.subscription_consumers import NAME, SubscriptionTerms, check_project, check_terms, creation, update
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    ConsumerCreated,
    ConsumerDeleted,
    CreateConsumer,
    DeadDeleted,
    DeleteConsumer,
    DeleteDead,
    PurgeArtifacts,
    PurgeEvents,
    PurgeResult,
    Request,
    Subscribe,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.contracts.subscriptions import PLACES, STREAM, consumer_name
from sandherd.service.purge_limits import artifacts_refusal, events_refusal
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.service.service import Service
from sandherd.service.stream_usage import acknowledged_sequence, read_fill
from sandherd.telemetry import logs

_EVENTS: Final = "EVENTS"
_ARTIFACTS: Final = "ARTIFACTS"
_DEAD: Final = "DEAD"
_PARALLEL_REQUESTS: Final = 16
"""Maximum number of requests of each kind that are processed at the same time."""
_CONSUMER_EXISTS: Final = 10148
"""The broker's error code for a consumer that exists with another configuration."""
_BROKER_ERRORS: Final = (*BROKER_ERRORS, BusError)
_log: Final = logs.get("stream_admin")


class StreamAdmin:
    """The handlers of the requests in `contracts.requests.stream_admin`. Every replica of the spawner has them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def register(self) -> None:
        """Register the handlers of all these requests with the service."""
        answers: dict[type[Request[Any]], Answerer] = {
            CreateConsumer: self.create_consumer,
            DeleteConsumer: self.delete_consumer,
            PurgeEvents: self.purge_events,
            PurgeArtifacts: self.purge_artifacts,
            DeleteDead: self.delete_dead,
        }
        for request, answer in answers.items():
            self._service.answer(request, answer, at_once=_PARALLEL_REQUESTS)

    async def create_consumer(self, incoming: IncomingRequest[CreateConsumer]) -> BaseModel:
        """Create a pull consumer for events of this project, or change its events. Raises `ContractError`."""
        request, project = incoming.request, incoming.project
        check_project(project)
        _check_place(request.place)
        terms = SubscriptionTerms(limit=len(PLACES), ack_wait=request.ack_wait_seconds, idle=request.idle_seconds)
        check_terms(terms)
        subscribe = Subscribe(name=request.name, types=request.types, start=request.start, entities=request.entities)
        consumer = consumer_name(project, request.place)
        if request.update:
            info = await self._api("INFO", consumer, {})
            metadata = (info.get("config") or {}).get("metadata") or {}
            if metadata.get(NAME) != request.name:  # the consumer of this subscription was deleted
                raise ContractError(Code.NOT_FOUND, f"there is no consumer {consumer}", field="place")
            body = update(subscribe, project, info["config"])
        else:
            body = creation(subscribe, project, request.place, terms)
        refusal = (await self._api("CREATE", consumer, {"stream_name": STREAM} | body)).get("error")
        if refusal and refusal.get("err_code") != _CONSUMER_EXISTS:
            raise ContractError(
                Code.UNAVAILABLE,
                f"the broker refuses to create a consumer: {refusal.get('description')}",
                remedy="check the number of consumers on EVENTS; the broker's limit is 1000",
            )
        return ConsumerCreated(created=refusal is None)

    async def _api(self, verb: str, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        """The broker's reply to a request about a consumer. Raises `ContractError` (`unavailable`)."""
        subject = f"{self._service.bus.api}.CONSUMER.{verb}.{STREAM}.{consumer}"
        try:
            reply: dict[str, Any] = json.loads(await self._service.bus.request(subject, json.dumps(body).encode()))
        except _BROKER_ERRORS as error:
            raise _unavailable(error) from error
        return reply

    async def delete_consumer(self, incoming: IncomingRequest[DeleteConsumer]) -> BaseModel:
        """Delete the consumer in one place of the project. Raises `ContractError`."""
        check_project(incoming.project)
        _check_place(incoming.request.place)
        try:
            await self._service.bus.js.delete_consumer(STREAM, consumer_name(incoming.project, incoming.request.place))
        except nats.js.errors.NotFoundError:
            return ConsumerDeleted(deleted=False)
        except _BROKER_ERRORS as error:
            raise _unavailable(error) from error
        return ConsumerDeleted(deleted=True)

    async def purge_events(self, incoming: IncomingRequest[PurgeEvents]) -> BaseModel:
        """Purge the events below a sequence. Raises `ContractError` if `events_refusal` does not permit it."""
        bus, below = self._service.bus, incoming.request.below
        try:
            fill = await read_fill(bus, _EVENTS)
            _allow(events_refusal(fill, await acknowledged_sequence(bus, fill), below), "below")
            await bus.js.purge_stream(_EVENTS, seq=below)
            return PurgeResult(messages=max(0, fill.messages - (await read_fill(bus, _EVENTS)).messages))
        except _BROKER_ERRORS as error:
            raise _unavailable(error) from error

    async def purge_artifacts(self, incoming: IncomingRequest[PurgeArtifacts]) -> BaseModel:
        """Purge a sandbox's oldest artifact chunks. Raises `ContractError` if `artifacts_refusal` forbids it."""
        bus, request = self._service.bus, incoming.request
        check_project(incoming.project)
        try:
            fill = await read_fill(bus, _ARTIFACTS)
            _allow(artifacts_refusal(fill, request.keep), "keep")
            subject = ARTIFACT.pattern({"project": incoming.project, "sandbox": request.sandbox})
            await bus.js.purge_stream(_ARTIFACTS, subject=subject, keep=request.keep)
            return PurgeResult(messages=max(0, fill.messages - (await read_fill(bus, _ARTIFACTS)).messages))
        except _BROKER_ERRORS as error:
            raise _unavailable(error) from error

    async def delete_dead(self, incoming: IncomingRequest[DeleteDead]) -> BaseModel:
        """Delete a dead letter by its sequence. Raises `ContractError` if the broker does not respond."""
        try:
            await self._service.bus.js.get_msg(_DEAD, incoming.request.number)
            await self._service.bus.js.delete_msg(_DEAD, incoming.request.number)
        except nats.js.errors.NotFoundError:
            return DeadDeleted(deleted=False)
        except _BROKER_ERRORS as error:
            raise _unavailable(error) from error
        return DeadDeleted(deleted=True)


def _check_place(place: int) -> None:
    if place not in PLACES:
        raise ContractError(Code.INVALID_FIELD, f"{place} is not a valid place of a subscription", field="place")


def _allow(refusal: str | None, field: str) -> None:
    if refusal is not None:
        _log.warning("purge refused", reason=refusal)
        raise ContractError(Code.REFUSED, refusal, field=field)


def _unavailable(error: Exception) -> ContractError:
    return ContractError(
        Code.UNAVAILABLE, f"the broker does not respond ({type(error).__name__})", remedy="check the herd"
    )
