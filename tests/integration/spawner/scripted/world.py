"""A small world around real spawners: users, workers, providers and a clock. A history decides what happens in it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Dead, Delivery, Done, Outcome, Retry
from sandherd.bus.identity import SpawnerKeys
from sandherd.contracts.commands import Command
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.subjects import command_subject, event_subject
from sandherd.telemetry.meters import Meters
from spawner.runtimes.contract import SandboxPlan
from tests.integration.spawner.scripted.gate import Fate, Gate, Kind, Traffic
from tests.integration.spawner.scripted.instance import Instance
from tests.integration.spawner.scripted.journal import Journal, Limits
from tests.integration.spawner.scripted.lease import Leases
from tests.integration.spawner.scripted.runtime import Box, Provider
from tests.integration.spawner.scripted.workers import Workers

T = TypeVar("T")
BEGIN: Final = datetime(2026, 11, 20, tzinfo=UTC)
LIMITS: Final = Limits(total=3, project=2, runtimes={"docker": 1})
"""The same limits as in `SETTINGS`."""
RUNTIMES: Final = ("process", "docker")
REPLICAS: Final = 2
_SOON: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Stage:
    """The surroundings of a history: the connection to the broker, and metrics without a reader."""

    bus: Bus
    keys: SpawnerKeys
    floors: Mapping[str, int]
    """The last revision in each bucket before the history began."""
    meters: Meters


@dataclass(eq=False)
class Waiting:
    """A message that a consumer will deliver, until it is acknowledged."""

    delivery: Delivery
    command: Envelope[Any]
    first_at: datetime | None = None
    """The time of its first delivery."""


class Revoked:
    """Revokes keys, and remembers them."""

    def __init__(self, keys: set[str], gate: Gate) -> None:
        self._keys = keys
        self._gate = gate

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        async def act() -> None:
            self._keys.update(keys)

        await self._gate.act("revoke", act)


class World:
    """The spawners and everything around them. Each method is something that may happen."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.limits = LIMITS
        self.traffic = Traffic()
        self.journal = Journal(self.limits)
        self.leases = Leases()
        self.revoked: set[str] = set()
        self.workers = Workers(self)
        self.providers = {name: Provider(name, self.workers.stop, self._seconds) for name in RUNTIMES}
        self.instances: list[Instance] = []
        self.gone: list[Instance] = []
        self.waiting: list[Waiting] = []
        """Commands that are not done yet."""
        self.given: list[Envelope[Any]] = []
        """All commands that were sent."""
        self._in_hand: list[datetime] = []
        """The times at which spawners began to handle commands, including spawners that are stopped since."""
        self.done: dict[UUID, datetime] = {}
        """The time at which each command was done."""
        self.dead: list[tuple[Envelope[Any], Dead]] = []
        self.waiting_events: list[Envelope[Any]] = []
        self.received: list[Envelope[Any]] = []
        """All events that workers have published."""
        self._clock = BEGIN
        self._sequence = 0
        self._started = 0

    # --- time and fate -------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time, which advances a little with each call."""
        self._clock += timedelta(microseconds=10)
        return self._clock

    def _seconds(self) -> float:
        return self.now().timestamp()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, but not so far that a command in progress is published again after its deduplication."""
        # What was delivered and is not done comes again in seconds, and a spawner that stands still in a handler
        # continues within the hour: not when its task was purged.
        begun = [at + _SOON for at in (*self._in_hand, *(it.first_at for it in self.waiting)) if at]
        self._clock = max(self._clock, min([self._clock + timedelta(seconds=seconds), *begun]))
        self.waiting = [waiting for waiting in self.waiting if self._fresh(waiting.command)]

    def _fresh(self, command: Envelope[Any]) -> bool:
        done = self.done.get(command.id)
        return done is None or self.now() - done < _SOON

    def ask_again(self, number: int) -> None:
        """Deliver a command again that was done, as if its acknowledgement was lost or it was sent twice."""
        done = [command for command in self.given if command.id in self.done and self._fresh(command)]
        if done:
            self.ask(done[number % len(done)])

    def unforeseen(self, where: str, error: BaseException) -> None:
        """Record an error that its part does not declare."""
        self.journal.broken.append(f"{where}: {error!r}")

    def revoker(self, gate: Gate) -> Revoked:
        return Revoked(self.revoked, gate)

    async def settled(self) -> bool:
        """Whether every agent event was consumed."""
        return not self.waiting_events

    # --- spawners ------------------------------------------------------------------------------------------------

    def spawner(self, number: int) -> Instance | None:
        """Choose one of the spawners that work; one is started if none does."""
        able = [instance for instance in self.instances if instance.works]
        if not able and len(self.instances) >= REPLICAS:
            return None
        return able[number % len(able)] if able else self.start()

    def start(self) -> Instance:
        """Start another spawner."""
        self._started += 1
        self.instances.append(Instance(self, f"spawner {self._started}"))
        return self.instances[-1]

    def _count_stale(self) -> None:
        """Count slow and stopped acts: each may delay a spawner between an admission and the creation of a sandbox."""
        met = [what for instance in self.gone + self.instances for what in instance.gate.met]
        self.journal.stale = sum(what.startswith((Kind.SLOW, Kind.STOP)) for what in met)

    async def step(self, spawner: Instance, what: str, work: Any, fate: Fate | None = None) -> None:
        """Let a spawner do something until it ends or stops. Nothing happens if it does not work any more."""
        if not spawner.works:
            work.close()
            return
        for instance in self.instances:
            if instance.works:
                instance.catch_up()
        if fate:
            spawner.gate.destine(fate)
        spawner.begin(what, work)
        await self.still()
        self._count_stale()
        if fate:
            spawner.gate.destine(None)

    async def still(self) -> None:
        """Wait until nothing is in progress; remove spawners that were killed."""
        while True:
            await self.traffic.quiet()
            for instance in [instance for instance in self.instances if instance.gate.dead]:
                await instance.bury()
                self.instances.remove(instance)
                self.gone.append(instance)
            written = len(self.journal.writes)
            for instance in self.instances:
                if instance.works:
                    instance.catch_up()
            await self.traffic.quiet()
            if len(self.journal.writes) == written:
                return

    async def tick(self, spawner: Instance, fate: Fate | None = None) -> None:
        """Let this spawner, which gets the lease, do a turn of the scheduler."""
        if not spawner.is_at("tick"):
            spawner.take_schedule()
            await self.step(spawner, "tick", spawner.tick(), fate)

    async def sweep(self, spawner: Instance, fate: Fate | None = None) -> None:
        """Let this spawner, which gets the lease, do a sweep; it wakes the keeper of every live sandbox."""
        if not spawner.is_at("sweep"):
            spawner.take_sweep()
            await self.step(spawner, "sweep", spawner.sweep(), fate)

    async def prune(self, spawner: Instance, fate: Fate | None = None) -> None:
        """Let this spawner sweep everything on request, now."""
        await self.step(spawner, "prune", spawner.prune(), fate)

    # --- users ---------------------------------------------------------------------------------------------------

    def command(self, data: Command, project: str, entity: str) -> None:
        """Send a command of a user."""
        now, number = self.now(), len(self.given) + 1
        # Ids depend on what came before and are not random, so that a history can be repeated.
        envelope = wrap(
            data, data.type, source="/sandherd/client/test", sequence=number, project=project,
            subject=entity, time=now, id=derived_uuid(now, "command", number),
        )  # fmt: skip
        self.given.append(envelope)
        self.ask(envelope)

    def ask(self, envelope: Envelope[Any]) -> None:
        """Queue a command for delivery, perhaps again."""
        subject = command_subject(envelope.type, envelope.project)
        delivery = Delivery(subject, envelope.to_json(), "COMMANDS", self.next_sequence(), 1, envelope.time)
        self.waiting.append(Waiting(delivery, envelope))

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    async def deliver(self, waiting: Waiting, spawner: Instance, fate: Fate | None = None) -> None:
        """Deliver a command to this spawner. It is delivered again until it is done."""

        async def handle() -> None:
            began = self.now()
            self._in_hand.append(began)
            try:
                outcome = await self._outcome(spawner.parts.command(waiting.delivery))
            finally:
                self._in_hand.remove(began)
            if waiting in self.waiting and not isinstance(outcome, Retry):
                self.waiting.remove(waiting)
                self.done.setdefault(waiting.command.id, self.now())
                if isinstance(outcome, Dead):
                    self.dead.append((waiting.command, outcome))

        waiting.first_at = waiting.first_at or self.now()
        waiting.delivery = waiting.delivery._replace(deliveries=waiting.delivery.deliveries + 1)
        await self.step(spawner, "handle", handle(), fate)

    async def receive(self, event: Envelope[Any], spawner: Instance, fate: Fate | None = None) -> None:
        """Deliver an agent's event to this spawner, for the first time or again."""
        subject = event_subject(event.project, event.subject, event.type)
        delivery = Delivery(subject, event.to_json(), "EVENTS", self.next_sequence(), 1, event.time)

        async def handle() -> None:
            outcome = await self._outcome(spawner.parts.agent(delivery))
            if isinstance(outcome, Dead):
                self.journal.broken.append(f"{event.type}: {outcome.problem.message}")
            if isinstance(outcome, Done) and event in self.waiting_events:
                self.waiting_events.remove(event)

        await self.step(spawner, "handle", handle(), fate)

    @staticmethod
    async def _outcome(handling: Any) -> Outcome:
        try:
            return await handling  # type: ignore[no-any-return]  # whatever it answers
        except ContractError as error:
            return Dead(error.problem)

    # --- what really is there ------------------------------------------------------------------------------------

    def boxes(self) -> list[tuple[Provider, Box]]:
        """All boxes of all providers."""
        return [(provider, box) for provider in self.providers.values() for box in provider.boxes.values()]

    def orphan(self, provider: Provider, name: str, project: str | None) -> None:
        """Add a box that was not requested."""
        provider.boxes[name] = Box(name, project, self._seconds())

    def agent_begins(self, box: Box, plan: SandboxPlan) -> None:
        """Start an agent: no other agent of its task may run."""
        others = [
            other.plan.sandbox
            for _, other in self.boxes()
            if other is not box and other.runs_agent and other.plan
            and (other.plan.project, other.plan.task) == (plan.project, plan.task)
        ]  # fmt: skip
        if others:
            self.journal.broken.append(f"{plan.task} runs twice at once: in {plan.sandbox} and {others}")

    async def join(self, box: Box, spawner: Instance, fate: Fate | None = None) -> None:
        """Let a worker request its credential from this spawner."""
        await self.step(spawner, "join", self.workers.join(box, spawner), fate)

    async def close(self) -> None:
        """End everything in this world."""
        for instance in list(self.instances):
            await instance.bury()
        await asyncio.sleep(0)
