"""Requests of several projects at one service, over a real broker and with each project's own credential."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.connection import Bus, RefusedError
from sandherd.bus.service import Asked, Lane, Service
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import TIMEOUT_HEADER, LiveTasks, TaskList, UploadChunk
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SHARED = Lane(name="shared", at_once=4, per_project=2, cancels=True)


class Desk:
    """Answers when it is let; remembers who began, who ended and who was cancelled."""

    def __init__(self) -> None:
        self.open = asyncio.Semaphore(0)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def answer(self, asked: Asked[Any]) -> BaseModel:
        self.begun.append(asked.project)
        self.running[asked.project] += 1
        self.most[asked.project] = max(self.most[asked.project], self.running[asked.project])
        try:
            await self.open.acquire()
            self.ended.append(asked.project)
        except asyncio.CancelledError:
            self.cancelled.append(asked.project)
            raise
        finally:
            self.running[asked.project] -= 1
        return TaskList(tasks=[])

    def let(self, count: int) -> None:
        for _ in range(count):
            self.open.release()


def service_with(herd: Broker, desk: Desk, lane: Lane, **settings: Any) -> Service:
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER, **settings))
    service.answer(LiveTasks, desk.answer, lane=lane)
    return service


async def ask(bus: Bus, project: str, timeout: float = PATIENCE) -> Any:
    return await bus.ask(LiveTasks(), project, timeout=timeout)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_projects_take_turns(herd: Broker) -> None:
    """With 200 of alpha's requests waiting, beta's is processed next, and alpha never has more than its slots."""
    desk = Desk()
    async with (
        service_with(herd, desk, SHARED).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(200)]
        await until(lambda: len(desk.begun) == 2)
        answer = asyncio.create_task(ask(beta, "beta"))
        await until(lambda: "beta" in desk.begun)
        assert desk.begun == ["alpha", "alpha", "beta"]
        desk.let(201)
        await asyncio.gather(answer, *flood)
    assert desk.most == {"alpha": 2, "beta": 1}
    assert desk.ended.count("alpha") == 200


async def test_with_one_slot_another_waits_for_one_request(herd: Broker) -> None:
    """In a lane of one slot, beta's request is processed after the one of alpha's that is in it, before all others."""
    desk = Desk()
    service = service_with(herd, desk, Lane(name="one"))
    async with (
        service.running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(100)]
        await until(lambda: len(desk.begun) == 1)
        answer = asyncio.create_task(ask(beta, "beta"))
        _, queue = service._answers._scheduler._lanes["one"]
        await until(lambda: queue.waiting("beta") == 1)  # the broker has it before the service does
        desk.let(1)
        await until(lambda: len(desk.begun) == 2)
        assert desk.begun == ["alpha", "beta"]
        desk.let(100)
        await asyncio.gather(answer, *flood)


async def test_a_full_queue_is_refused_at_once(herd: Broker) -> None:
    """What a project asks for beyond its places is answered `busy` with a time to wait, while the others wait on."""
    desk = Desk()
    async with (
        service_with(herd, desk, SHARED, requests_waiting=5).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
        herd.bus(Principal.CLIENT, project="beta") as beta,
    ):
        flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(50)]
        await until(lambda: sum(task.done() for task in flood) == 50 - 2 - 5)
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


async def test_work_for_who_is_gone_is_cancelled(herd: Broker) -> None:
    """Requests whose requester has stopped waiting: what is processed is cancelled, what waits is never begun."""
    desk = Desk()
    async with service_with(herd, desk, SHARED).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        # The others have to be late when these are: the service may receive them a while after these.
        gone = [asyncio.create_task(ask(alpha, "alpha", 6)) for _ in range(2)]
        await until(lambda: len(desk.begun) == 2)
        gone += [asyncio.create_task(ask(alpha, "alpha", 0.3)) for _ in range(18)]
        await until(lambda: len(desk.cancelled) == 2)
        await asyncio.wait(gone)
        desk.let(1)
        await ask(alpha, "alpha")
    assert desk.begun == ["alpha"] * 3
    assert desk.ended == ["alpha"]


async def test_places_of_who_is_gone_are_free(herd: Broker) -> None:
    """A queue full of requests that nobody waits for refuses nobody: they are dropped for the next one."""
    desk = Desk()
    lane = Lane(name="changes", at_once=1, per_project=1)
    async with (
        service_with(herd, desk, lane, requests_waiting=3).running(),
        herd.bus(Principal.CLIENT, project="alpha") as alpha,
    ):
        first = asyncio.create_task(ask(alpha, "alpha"))
        await until(lambda: len(desk.begun) == 1)
        refused = await ask_and_leave(alpha, 3)
        second = asyncio.create_task(ask_until_accepted(alpha, "alpha"))
        await until(lambda: len(refused) == 3)
        desk.let(2)
        await asyncio.gather(first, second)
    assert desk.begun == ["alpha", "alpha"]


async def ask_and_leave(bus: Bus, count: int) -> list[bytes]:
    """Requests that say they wait for a moment only. Returns what they are answered, as it arrives.

    How long each waits is counted by the service from when it receives it, which on a busy machine is later than when
    a requester gives up; so whoever comes next may be told to ask again.
    """
    answers: list[bytes] = []

    async def receive(msg: Msg) -> None:
        answers.append(msg.data)

    inbox = bus.client.new_inbox()
    await bus.client.subscribe(inbox, cb=receive)
    subject, payload = request_subject(LiveTasks.type, "alpha"), LiveTasks().model_dump_json().encode()
    for _ in range(count):
        await bus.client.publish(subject, payload, reply=inbox, headers={TIMEOUT_HEADER: "0.1"})
    return answers


async def ask_until_accepted(bus: Bus, project: str) -> Any:
    """Ask as the refusal says, after the time it names, until it is no more refused as busy."""
    while True:
        try:
            return await ask(bus, project)
        except RefusedError as error:
            if error.problem.code is not Code.BUSY:
                raise
            await asyncio.sleep(error.problem.retry_after_seconds or 0)


async def test_what_changes_something_is_not_cancelled(herd: Broker) -> None:
    """In a lane that does not cancel, what was begun is completed though its requester is gone."""
    desk = Desk()
    lane = Lane(name="changes", at_once=1, per_project=1)
    async with service_with(herd, desk, lane).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        await asyncio.wait([asyncio.create_task(ask(alpha, "alpha", 0.3))])
        desk.let(2)
        await ask(alpha, "alpha")
    assert desk.ended == ["alpha", "alpha"]
    assert desk.cancelled == []


@pytest.mark.parametrize("header", ["nan", "inf", "-1", "0", "", "soon", "1e999", "9" * 4000])
async def test_a_timeout_that_is_none_is_harmless(herd: Broker, header: str) -> None:
    """Whatever stands in the header, the request is answered."""
    desk = Desk()
    async with service_with(herd, desk, SHARED).running(), herd.bus(Principal.CLIENT, project="alpha") as alpha:
        desk.let(1)
        subject, payload = request_subject(LiveTasks.type, "alpha"), LiveTasks().model_dump_json().encode()
        reply = await alpha.request(subject, payload, timeout=PATIENCE, headers={TIMEOUT_HEADER: header})
    assert json.loads(reply) == {"ok": {"tasks": []}}


async def test_everybody_is_answered_when_the_service_ends(herd: Broker) -> None:
    """A service that ends answers what is processed and what waits."""
    desk = Desk()
    service = service_with(herd, desk, SHARED)
    async with herd.bus(Principal.CLIENT, project="alpha") as alpha:
        async with service.running():
            flood = [asyncio.create_task(ask(alpha, "alpha")) for _ in range(10)]
            await until(lambda: len(desk.begun) == 2)
            await alpha.settle()
        found = await asyncio.gather(*flood, return_exceptions=True)
    assert [type(one) for one in found] == [RefusedError] * 10


async def test_one_kind_alone_has_a_fair_lane_too(herd: Broker) -> None:
    """A kind without a lane of its own: one project gets at most half of what is answered at the same time."""
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
        await until(lambda: len(desk.begun) == 4)
        answer = asyncio.create_task(beta.ask(chunk, "beta", timeout=PATIENCE))
        await until(lambda: "beta" in desk.begun)
        desk.let(21)
        await asyncio.gather(answer, *flood, return_exceptions=True)
    assert desk.most == {"alpha": 4, "beta": 1}
