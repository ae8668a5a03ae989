"""A provider of sandboxes that acts as a history says, and the runtime through which a spawner uses it.

The provider outlives every spawner. It may refuse a request, or carry it out without a reply, twice, or much later; it
may lose sandboxes, and have some that were not requested.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sandherd.bus.identity.keys import Key, KeyKind
from spawner.runtimes.commands import Address, Command, CommandResult, File
from spawner.runtimes.contract import (
    Capabilities,
    Isolation,
    ObservedSandbox,
    RunEnd,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    WarmPlan,
)
from tests.integration.spawner.scripted.gate import Gate

_KILLED: Final = 137


class Fault(StrEnum):
    """A fault of one request to the provider."""

    LOST = "lost"
    """The request has no effect and no reply."""
    UNTOLD = "untold"
    """The request takes effect, and has no reply."""
    TWICE = "twice"
    """The request takes effect now, and again later."""
    LATER = "later"
    """The request has no reply, and takes effect later."""
    QUOTA = "quota"
    """The request is refused for lack of capacity."""
    REFUSED = "refused"
    """The request is refused permanently."""


class Doing(StrEnum):
    """The state of a worker."""

    WAITING = "waiting"
    """The worker was started in advance, and has no identity yet."""
    JOINING = "joining"
    """The worker has no credential yet."""
    SERVING = "serving"
    """The worker serves the creator of its sandbox, and runs no agent."""
    AGENT = "agent"
    """Its agent runs."""
    PUBLISHED_END = "said end"
    """Its agent has ended, and that is published now or by the recovery."""
    RECOVERING = "recovering"


@dataclass(eq=False)
class Box:
    """A sandbox as it really is. `runs` distinguishes the runs of its worker."""

    unit: str
    project: str | None
    since: float
    plan: SandboxPlan | None = None
    doing: Doing = Doing.JOINING
    key: str = ""
    """The public key of a worker that was started in advance; each later run has the same key."""
    runs: int = 1
    alive: bool = True
    paused: bool = False
    end: RunEnd | None = None
    spool: list[Any] = field(default_factory=list)
    """The events that its worker has stored and not published yet."""
    ended_published: bool = False

    @property
    def runs_agent(self) -> bool:
        """Whether an agent runs in it."""
        return self.alive and self.doing is Doing.AGENT

    def finish(self, code: int | None) -> None:
        """End its worker."""
        self.alive, self.paused, self.end = False, False, RunEnd(code)

    def seen(self) -> ObservedSandbox:
        """The sandbox as a runtime reports it."""
        return ObservedSandbox(
            self.unit,
            alive=self.alive,
            runs=self.runs,
            end=self.end,
            project=self.project,
            since=self.since,
            frozen=self.paused if self.alive else None,
        )


class Provider:
    """All boxes of one runtime. `drain(box)` publishes a box's spool."""

    def __init__(self, name: str, drain: Callable[[Box], None], now: Callable[[], float]) -> None:
        self.name = name
        self.boxes: dict[str, Box] = {}
        self.quarantined: dict[str, Box] = {}
        self.faults: dict[str, Fault] = {}
        """The fault of the next request of each kind."""
        self.late: list[Callable[[], None]] = []
        """The effects that come later."""
        self._drain = drain
        self._now = now

    def catch_up(self) -> None:
        """Apply the first of the later effects. If that is no longer possible, nothing happens."""
        if self.late:
            with suppress(RuntimeFailedError):
                self.late.pop(0)()

    def request(self, verb: str, effect: Callable[[], None]) -> None:
        """Apply a request, or its fault. Raises `RuntimeFailedError`."""
        fault = self.faults.pop(verb, None)
        if fault in {None, Fault.UNTOLD, Fault.TWICE}:
            effect()
        if fault in {Fault.TWICE, Fault.LATER}:
            self.late.append(effect)
        match fault:
            case Fault.LOST | Fault.UNTOLD | Fault.LATER:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no answer to {verb}")
            case Fault.QUOTA:
                raise RuntimeFailedError(RuntimeFault.QUOTA, "there is no capacity")
            case Fault.REFUSED:
                raise RuntimeFailedError(RuntimeFault.REFUSED, "never")
            case _:
                pass

    def create(self, plan: SandboxPlan) -> None:
        box = self.boxes.get(plan.unit)
        if box is None:
            self.boxes[plan.unit] = Box(plan.unit, plan.project, self._now(), plan)
        elif box.doing is Doing.WAITING:
            box.plan, box.project, box.doing = plan, plan.project, Doing.JOINING

    def prepare(self, plan: WarmPlan) -> None:
        if plan.unit not in self.boxes:
            key = Key.new(KeyKind.USER).public
            self.boxes[plan.unit] = Box(plan.unit, None, self._now(), doing=Doing.WAITING, key=key)

    def key_of(self, unit: str) -> str | None:
        box = self.boxes.get(unit)
        return box.key or None if box else None

    def recover(self, plan: SandboxPlan) -> None:
        box = self.boxes.get(plan.unit)
        if box is None:
            raise RuntimeFailedError(RuntimeFault.LOST, f"there is no {plan.unit}")
        if not box.alive:
            box.runs, box.alive, box.end, box.doing, box.plan = box.runs + 1, True, None, Doing.RECOVERING, plan

    def stop(self, unit: str) -> None:
        box = self.boxes.get(unit)
        if box is None or not box.alive:
            return
        if box.doing in {Doing.WAITING, Doing.JOINING, Doing.RECOVERING}:
            box.finish(_KILLED)  # it has no replies yet
            return
        box.paused = False
        self._drain(box)
        box.finish(0)

    def remove(self, unit: str) -> None:
        self.boxes.pop(unit, None)

    def keep(self, unit: str) -> None:
        box = self.boxes.pop(unit, None)
        if box is not None:
            box.finish(box.end.code if box.end else _KILLED)
            self.quarantined[unit] = box

    def take_back(self, unit: str) -> None:
        if unit in self.quarantined:
            self.boxes[unit] = self.quarantined.pop(unit)

    def pause(self, unit: str, *, paused: bool) -> None:
        box = self.boxes.get(unit)
        if box is None or not box.alive:
            raise RuntimeFailedError(RuntimeFault.LOST, f"there is no {unit} that lives")
        box.paused = paused


class ScriptedRuntime:
    """The runtime as one spawner has it: each request passes the spawner's gate."""

    def __init__(self, provider: Provider, gate: Gate) -> None:
        self.name = provider.name
        self.capabilities = Capabilities(
            Isolation.NONE, memory="cgroup", processes="cgroup", can_pause=True, can_prepare=True
        )
        self._provider = provider
        self._gate = gate

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Do nothing: in a history a spawner learns of an exit by its sweep."""

    async def prepare(self, plan: WarmPlan) -> str | None:
        await self._ask("prepare", lambda: self._provider.prepare(plan))
        return self._provider.key_of(plan.unit)

    async def create(self, plan: SandboxPlan) -> None:
        await self._ask("create", lambda: self._provider.create(plan))

    async def recover(self, plan: SandboxPlan) -> None:
        await self._ask("recover", lambda: self._provider.recover(plan))

    async def pause(self, unit: str) -> None:
        await self._ask("pause", lambda: self._provider.pause(unit, paused=True))

    async def resume(self, unit: str) -> None:
        await self._ask("resume", lambda: self._provider.pause(unit, paused=False))

    async def stop(self, unit: str, grace: float) -> None:
        await self._ask("stop", lambda: self._provider.stop(unit))

    async def release(self, unit: str) -> None:
        pass

    async def observe(self, unit: str) -> ObservedSandbox | None:
        async def see() -> ObservedSandbox | None:
            box = self._provider.boxes.get(unit)
            return box.seen() if box else None

        return await self._gate.act("look", see)

    async def find_all(self) -> list[ObservedSandbox]:
        async def see() -> list[ObservedSandbox]:
            return [box.seen() for box in self._provider.boxes.values()]

        return await self._gate.act("find_all", see)

    async def remove(self, unit: str) -> None:
        await self._ask("remove", lambda: self._provider.remove(unit))

    async def quarantine(self, unit: str) -> None:
        await self._ask("keep", lambda: self._provider.keep(unit))

    async def list_quarantined(self) -> list[str]:
        return list(self._provider.quarantined)

    async def unquarantine(self, unit: str) -> None:
        await self._ask("take_back", lambda: self._provider.take_back(unit))

    async def run(self, unit: str, command: Command) -> CommandResult:
        raise NotImplementedError  # no history has one of these four

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        raise NotImplementedError

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        raise NotImplementedError

    async def address(self, unit: str, port: int) -> Address:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    async def _ask(self, verb: str, effect: Callable[[], None]) -> None:
        async def ask() -> None:
            self._provider.request(verb, effect)

        await self._gate.act(verb, ask)
