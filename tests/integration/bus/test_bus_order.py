"""Commands about one entity take effect in stream order; others are not delayed."""

import asyncio
import json

from sandherd.bus.connection import BusError
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry, consume
from sandherd.bus.health import Health
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.polling import eventually

CONSUMER = "spawner-commands"
SUBJECT = "sandherd.v1.command.spawner.submit_task"
NONE: frozenset[str] = frozenset()


async def submit(herd: Broker, *commands: tuple[str, str], project: str = "p1") -> None:
    """Publish commands; each is the name of a task and a text."""
    async with herd.bus(Principal.CLIENT, project=project) as client:
        for number, (task, word) in enumerate(commands):
            document = json.dumps({"data": {"task": task, "word": word}}).encode()
            await client.publish(f"{SUBJECT}.{project}", document, msg_id=f"{project}-{number}-{word}")


class Obeyed:
    """The completed commands, in order. The first attempts of `unlucky`, and those before `until` is done, fail."""

    def __init__(
        self, unlucky: str, outcome: Outcome | Exception, tries: int = 3, until: frozenset[str] = NONE
    ) -> None:
        self.words: list[str] = []
        self._unlucky, self._outcome, self._left, self._until = unlucky, outcome, tries, until

    async def __call__(self, delivery: Delivery) -> Outcome:
        word = json.loads(delivery.data)["data"]["word"]
        if word == self._unlucky and (self._left > 0 or not self._until <= {*self.words}):
            self._left -= 1
            if isinstance(self._outcome, Exception):
                raise self._outcome
            return self._outcome
        self.words.append(word)
        return DONE


async def obey(herd: Broker, obeyed: Obeyed, count: int) -> None:
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, obeyed, health=Health(), concurrency=16))
        await eventually(lambda: len(obeyed.words) == count)
        task.cancel()


async def test_second_command_of_a_task_waits_for_the_first(herd: Broker) -> None:
    """If the first of two commands about one task is retried, the second is handled after it, not instead."""
    obeyed = Obeyed("first", Retry(0.3, "the buckets do not answer"))
    await submit(herd, ("task-1", "first"), ("task-1", "second"))
    await obey(herd, obeyed, 2)
    assert obeyed.words == ["first", "second"]


async def test_failing_handler_preserves_the_order(herd: Broker) -> None:
    """A command whose handler raised is retried before later ones, as when the database of records was slow."""
    obeyed = Obeyed("first", BusError("no answer within 5 s"), tries=2)
    await submit(herd, ("task-1", "first"), ("task-1", "second"), ("task-1", "third"))
    await obey(herd, obeyed, 3)
    assert obeyed.words == ["first", "second", "third"]


async def test_other_entities_do_not_wait(herd: Broker) -> None:
    """Commands about other tasks, and about a task of that name in another project, overtake the waiting one."""
    obeyed = Obeyed("first", Retry(0.3, "not yet"), tries=1, until=frozenset({"other", "elsewhere"}))
    await submit(herd, ("task-1", "first"), ("task-1", "second"), ("task-2", "other"))
    await submit(herd, ("task-1", "elsewhere"), project="p2")
    await obey(herd, obeyed, 4)
    assert set(obeyed.words[:2]) == {"other", "elsewhere"}
    assert obeyed.words[2:] == ["first", "second"]


async def test_long_retry_is_not_delivered_twice(herd: Broker) -> None:
    """A message that waits for longer than the ack wait is not redelivered in the meantime."""
    obeyed = Obeyed("first", Retry(12.0, "the broker redelivers after 10 s"), tries=1)
    await submit(herd, ("task-1", "first"), ("task-1", "second"))
    await obey(herd, obeyed, 2)
    assert obeyed.words == ["first", "second"]
