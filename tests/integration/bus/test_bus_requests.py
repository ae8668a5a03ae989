"""Requests of several projects at one service, over a real broker and with each project's own credential."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.connection import Bus, RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import TIMEOUT_HEADER, ListLiveTasks, TaskList, UploadChunk
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.service.service import IncomingRequest, RequestLane, Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

SHARED = RequestLane(name="shared", at_once=4, per_project=2, cancels=True)


class Text(BaseModel):
    """A reply of any size."""

    text: str


class Desk:
    """Replies when the test permits it; stores which requests have begun, ended or been cancelled."""

    def __init__(self) -> None:
        self.open = asyncio.Semaphore(0)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def answer(self, requested: IncomingRequest[Any]) -> BaseModel:
        self.begun.append(requested.project)
        self.running[requested.project] += 1
        self.most[requested.project] = max(self.most[requested.project], self.running[requested.project])
        try:
            await self.open.acquire()
            self.ended.append(requested.project)
        except asyncio.CancelledError:
            self.cancelled.append(requested.project)
            raise
        finally:
            self.running[requested.project] -= 1
        return TaskList(tasks=[])

    def let(self, count: int) -> None:
        for _ in range(count):
            self.open.release()


def service_with(herd: Broker, desk: Desk, lane: RequestLane, **settings: Any) -> Service:
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER, **settings))
    service.answer(ListLiveTasks, desk.answer, lane=lane)
    return service


async def ask(bus: Bus, project: str, timeout: float = PATIENCE) -> Any:
    return await bus.ask(ListLiveTasks(), project, timeout=timeout)


async def test_projects_take_turns(herd: Broker) -> None:
    """With 200 of alpha's requests waiting, beta's is processed next, and alpha never exceeds its slots."""
    desk = Desk()
    async with (
        service_with(herd, desk, SHARED).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(200)]
        await eventually(lambda: len(desk.begun) == 2)
        answer = asyncio.create_task(ask(beta, "beta"))
        await eventually(lambda: "beta" in desk.begun)
        assert desk.begun == ["alpha", "alpha", "beta"]
        desk.let(201)
        await asyncio.gather(answer, *flood)
    assert desk.most == {"alpha": 2, "beta": 1}
    assert desk.ended.count("alpha") == 200


async def test_reply_larger_than_a_message_is_an_error(herd: Broker) -> None:
    """The requester gets the error at once, with a remedy, instead of waiting; the service continues."""

    async def answer(requested: IncomingRequest[Any]) -> BaseModel:
        return Text(text="x" * (1024 * 1024 if requested.project == "alpha" else 1))

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(ListLiveTasks, answer)
    async with service.running():
        for project, expected in (("alpha", "too_large"), ("beta", None)):
            async with herd.bus(Principal.CLIENT, project=project) as bus:
                reply = await bus.request(request_subject(ListLiveTasks.type, project), b"{}", timeout=PATIENCE)
                assert (json.loads(reply).get("error") or {}).get("code") == expected


async def test_single_slot_alternates_between_projects(herd: Broker) -> None:
    """In a lane of one slot, beta's request follows the request of alpha in process, before all others."""
    desk = Desk()
    service = service_with(herd, desk, RequestLane(name="one"))
    async with (
        service.running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(100)]
        await eventually(lambda: len(desk.begun) == 1)
        answer = asyncio.create_task(ask(beta, "beta"))
        _, queue = service._answers._scheduler._lanes["one"]
        await eventually(lambda: queue.waiting("beta") == 1)  # the broker has it before the service has it
        desk.let(1)
        await eventually(lambda: len(desk.begun) == 2)
        assert desk.begun == ["alpha", "beta"]
        desk.let(100)
        await asyncio.gather(answer, *flood)


async def test_full_queue_refuses_at_once(herd: Broker) -> None:
    """A request of a project beyond its places gets `busy` with a time to wait; the others keep their places."""
    desk = Desk()
    async with (
        service_with(herd, desk, SHARED, requests_waiting=5).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(50)]
        await eventually(lambda: sum(task.done() for task in flood) == 50 - 2 - 5)
        problems = [task.exception() for task in flood if task.done()]
        for problem in problems:
            assert isinstance(problem, RefusedError)
            assert problem.problem.code is Code.BUSY
            assert problem.problem.retry_after_seconds
            assert problem.problem.remedy
        desk.let(50)
        await ask(beta, "beta")
        await asyncio.gather(*flood, return_exceptions=True)
    assert desk.ended.count("alpha") == 7


async def test_requests_of_vanished_requester_are_cancelled(herd: Broker) -> None:
    """Requests whose requester no longer waits are cancelled, or never started from the queue."""
    desk = Desk()
    async with service_with(herd, desk, SHARED).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        # The others must be late when these are late: the service may receive them a while after these.
        gone = [asyncio.create_task(ask(alpha, "alpha", 6)) for _ in range(2)]
        await eventually(lambda: len(desk.begun) == 2)
        gone += [asyncio.create_task(ask(alpha, "alpha", 0.3)) for _ in range(18)]
        await eventually(lambda: len(desk.cancelled) == 2)
        await asyncio.wait(gone)
        desk.let(1)
        await ask(alpha, "alpha")
    assert desk.begun == ["alpha"] * 3
    assert desk.ended == ["alpha"]


async def test_nothing_is_read_for_a_request_without_reply_subject(herd: Broker) -> None:
    """A request that may be cancelled, as it changes nothing, takes no slot if it has no reply subject."""
    desk = Desk()
    async with service_with(herd, desk, SHARED).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        for _ in range(5):
            await alpha.client.publish(request_subject(ListLiveTasks.type, "alpha"), b"{}")
        desk.let(1)
        assert await ask(alpha, "alpha")
    assert len(desk.begun) == 1


async def test_queue_places_of_vanished_requester_are_freed(herd: Broker) -> None:
    """A queue full of abandoned requests refuses no new request: the abandoned ones are dropped."""
    desk = Desk()
    lane = RequestLane(name="changes", at_once=1, per_project=1)
    async with (
        service_with(herd, desk, lane, requests_waiting=3).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
    ):
        first = asyncio.create_task(ask(alpha, "alpha"))
        await eventually(lambda: len(desk.begun) == 1)
        refused = await ask_and_leave(alpha, 3)
        second = asyncio.create_task(ask_until_accepted(alpha, "alpha"))
        await eventually(lambda: len(refused) == 3)
        desk.let(2)
        await asyncio.gather(first, second)
    assert desk.begun == ["alpha", "alpha"]


async def ask_and_leave(bus: Bus, count: int) -> list[bytes]:
    """Send requests that state a short wait. Returns their replies as they arrive.

    The service counts a request's wait from its arrival, which on a busy machine is later than the requester's; so the
    next requester may be refused as busy.
    """
    answers: list[bytes] = []

    async def receive(msg: Msg) -> None:
        answers.append(msg.data)

    inbox = bus.client.new_inbox()
    await bus.client.subscribe(inbox, cb=receive)
    subject, payload = request_subject(ListLiveTasks.type, "alpha"), ListLiveTasks().model_dump_json().encode()
    for _ in range(count):
        await bus.client.publish(subject, payload, reply=inbox, headers={TIMEOUT_HEADER: "0.1"})
    return answers


async def ask_until_accepted(bus: Bus, project: str) -> Any:
    """Send a request, and repeat it after the time in the refusal, until it is not refused as busy."""
    while True:
        try:
            return await ask(bus, project)
        except RefusedError as error:
            if error.problem.code is not Code.BUSY:
                raise
            await asyncio.sleep(error.problem.retry_after_seconds or 0)


async def test_started_change_is_completed_without_its_requester(herd: Broker) -> None:
    """In a lane without cancellation a started request is completed though its requester no longer waits."""
    desk = Desk()
    lane = RequestLane(name="changes", at_once=1, per_project=1)
    async with service_with(herd, desk, lane).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        await asyncio.wait([asyncio.create_task(ask(alpha, "alpha", 0.3))])
        desk.let(2)
        await ask(alpha, "alpha")
    assert desk.ended == ["alpha", "alpha"]
    assert desk.cancelled == []


@pytest.mark.parametrize("header", ["nan", "inf", "-1", "0", "", "soon", "1e999", "9" * 4000])
async def test_invalid_timeout_header_is_ignored(herd: Broker, header: str) -> None:
    """The request is processed, whatever the header contains."""
    desk = Desk()
    async with service_with(herd, desk, SHARED).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        desk.let(1)
        subject, payload = request_subject(ListLiveTasks.type, "alpha"), ListLiveTasks().model_dump_json().encode()
        reply = await alpha.request(subject, payload, timeout=PATIENCE, headers={TIMEOUT_HEADER: header})
    assert json.loads(reply) == {"ok": {"tasks": []}}


async def test_stopping_service_replies_to_all_requests(herd: Broker) -> None:
    """Both processed and waiting requests get a reply when the service stops."""
    desk = Desk()
    service = service_with(herd, desk, SHARED)
    async with herd.bus(Principal.CLIENT, project="alpha") as alpha:
        async with service.running():
            flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(10)]
            await eventually(lambda: len(desk.begun) == 2)
            await alpha.flush()
        found = await asyncio.gather(*flood, return_exceptions=True)
    assert [type(one) for one in found] == [RefusedError] * 10


async def test_request_type_without_a_lane_is_fair(herd: Broker) -> None:
    """One project gets at most half of the concurrent slots."""
    desk = Desk()
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(UploadChunk, desk.answer, at_once=8)
    async with (
        service.running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        chunk = UploadChunk(sandbox="sbx-one", artifact="upl-one", index=0, data=b"x")
        flood = [asyncio.create_task(alpha.ask(chunk, "alpha", timeout=PATIENCE)) for _ in range(20)]
        await eventually(lambda: len(desk.begun) == 4)
        answer = asyncio.create_task(beta.ask(chunk, "beta", timeout=PATIENCE))
        await eventually(lambda: "beta" in desk.begun)
        desk.let(21)
        await asyncio.gather(answer, *flood, return_exceptions=True)
    assert desk.most == {"alpha": 4, "beta": 1}
