"""The access handlers on a real bus, with records that a test sets and a worker that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.connection import Bus
from sandherd.contracts.commands import SandboxLimits
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import REQUESTS, Reply, Request
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal, sandbox_request_subject
from sandherd.service.encoded_answer import AnyAnswer
from sandherd.service.requests import Answerer
from sandherd.service.service import IncomingRequest, Service
from sandherd.stack.broker import Broker
from spawner.access.request_handlers import ANSWERED, make_handlers
from spawner.harness_plugins import HarnessPlugins
from spawner.live_state import LiveState
from spawner.runtimes.contract import Runtime, capabilities_of
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import SpawnPolicy
from tests.patience import PATIENCE

Play = Callable[[Any], Awaitable[BaseModel]]


@asynccontextmanager
async def access_handlers(
    herd: Broker, runtimes: Mapping[str, Runtime] | None = None, **settings: Any
) -> AsyncIterator[LiveState]:
    """A replica that only replies to requests about sandboxes."""
    wanted = herd.settings(Principal.SPAWNER, **settings)
    service = Service(Principal.SPAWNER, wanted)
    answers: dict[type[Request[Any]], Answerer] = {}

    def later(request: type[Request[Any]]) -> Answerer:
        async def answer(requested: IncomingRequest[Any]) -> AnyAnswer:
            return await answers[request](requested)

        return answer

    for request, at_once in ANSWERED.items():
        service.answer(request, later(request), at_once=at_once)
    async with service.running():
        live = LiveState(service.bus, service.meters)
        answers |= make_handlers(
            service.bus,
            live,
            wanted,
            policy=SpawnPolicy.of(wanted, capabilities_of(runtimes or {})),
            runtimes=runtimes or {},
            harnesses=HarnessPlugins().names,
            secrets_key="a-key",
        )
        yield live


async def make_record(live: LiveState, sandbox: str = "sbx-1", **fields: Any) -> SandboxRecord:
    """Create a record of a sandbox of project p1, which is running by default."""
    record = SandboxRecord(
        project="p1",
        sandbox=sandbox,
        runtime="process",
        limits=SandboxLimits(),
        requested_at=datetime.now(UTC),
        **{"state": SandboxState.RUNNING, **fields},
    )
    held, created = await live.sandboxes.create(record)
    assert created
    return held.record


async def change_record(live: LiveState, sandbox: str = "sbx-1", **fields: Any) -> None:
    """Set a record to any state, without regard to the table of transitions."""
    await live.sandboxes.change(f"p1.{sandbox}", lambda record, _: record.model_copy(update=fields))


async def play(bus: Bus, request: type[Request[Any]], do: Play, sandbox: str = "sbx-1") -> None:
    """Let `do` reply to this request as the sandbox's worker from now on. A `ContractError` is a refusal."""

    async def answer(message: Msg) -> None:
        try:
            reply = Reply[Any](ok=await do(REQUESTS[request.type].model_validate_json(message.data, strict=True)))
        except ContractError as error:
            reply = Reply[Any](error=error.problem)
        await message.respond(reply.model_dump_json(exclude_none=True).encode())

    answering: set[asyncio.Task[None]] = set()

    async def receive(message: Msg) -> None:
        task = asyncio.create_task(answer(message))  # handled one after the other they would delay each other
        answering.add(task)
        task.add_done_callback(answering.discard)

    await bus.client.subscribe(sandbox_request_subject(request.type, "p1", sandbox), cb=receive)
    await bus.flush(timeout=PATIENCE)
