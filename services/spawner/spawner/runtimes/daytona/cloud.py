"""Daytona as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from daytona import AsyncDaytona, AsyncSandbox

from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    File,
    ProgramEnd,
    ProviderError,
    ProviderFault,
    Ran,
)
from spawner.runtimes.boxes.retrying import USUAL, Patience, persistently
from spawner.runtimes.daytona import making, sandboxes
from spawner.runtimes.daytona.account import Account
from spawner.runtimes.daytona.patience import within
from spawner.runtimes.daytona.sandboxes import END, ENDING, FAILED, KEPT, RESTING, RUNS, Kind, State, state_of
from spawner.runtimes.daytona.toolbox import Toolbox

_log: Final = logs.get("runtime.daytona")
_SHOWN: Final = "x-daytona-preview-token"
_REMOVALS: Final = 3
"""How often a removal is asked for that does not come to its end."""


class Cloud(Account):
    """One account at Daytona. `daytona` is closed with it."""

    name = "daytona"
    abilities = Abilities(pause=True, process_limit=False, ports=True)
    of_snapshots = replace(abilities, memory_limit=False)
    """The same where there is a snapshot, which has its own memory."""

    def __init__(
        self, daytona: AsyncDaytona, kind: Kind, bundled: bytes | None = None, patience: Patience = USUAL
    ) -> None:
        super().__init__(daytona, kind, patience)
        self.abilities = self.of_snapshots if kind.snapshot else self.abilities
        self._bundled = bundled
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, spec: BoxSpec) -> Box:
        """Make the sandbox with its files, and start its program. What was left half done is gone on with.

        Every try begins with a look whether it is there, as a lost answer tells nothing.
        """

        async def once() -> Box:
            sandbox = await self._look(spec.name) or await self._made(spec)
            return await self._begun(await self._settled(sandbox, spec), spec)

        async with self._turns.setdefault(spec.name, asyncio.Lock()):
            return await persistently(once, self._patience)

    async def get(self, name: str) -> Box | None:
        """The sandbox of this name."""
        sandbox = await persistently(lambda: self._look(name), self._patience)
        return await self._shown(sandbox) if sandbox else None

    async def start(self, name: str) -> None:
        """Start the program once more."""
        await persistently(lambda: self._start(name), self._patience)

    async def stop(self, name: str, grace: float) -> None:
        """Ask the program to end, end it after the grace, and stop the sandbox; not one that would go with that.

        Whatever is said in the sandbox, or is not, it is stopped: its agent may have taken its toolbox's place.
        """
        sandbox = await persistently(lambda: self._look(name), self._patience)
        end = await self._ended(sandbox, grace) if sandbox and state_of(sandbox) == State.STARTED else None
        if not (self._kind.ephemeral and end):
            await persistently(lambda: self._stop(name, end), self._patience)

    async def pause(self, name: str) -> None:
        """Let the sandbox stand still, where its class can."""
        await persistently(lambda: self._pause(name), self._patience)

    async def resume(self, name: str) -> None:
        """Let it go on."""

        async def once() -> None:
            sandbox = await self._known(name)
            if state_of(sandbox) in {State.PAUSED, State.PAUSING}:
                with self._telling.faults(f"resuming {name}"):
                    await within(self._kind.patience, sandbox.start(0))

        await persistently(once, self._patience)

    async def remove(self, name: str) -> None:
        """Remove the sandbox. One that is stuck is removed again, and if that does not help either it is said."""
        for tried in range(1, _REMOVALS + 1):
            try:
                await persistently(lambda: self._remove(name), self._patience)
                return
            except ProviderError as error:
                if error.fault is not ProviderFault.TIMED_OUT or tried == _REMOVALS:
                    raise

    async def set_aside(self, name: str) -> None:
        """Mark it by a label."""
        await persistently(lambda: self._label(name, {KEPT: "true"}), self._patience)

    async def take_back(self, name: str) -> None:
        """Take the label off."""
        await persistently(lambda: self._label(name, {KEPT: None}), self._patience)

    async def run(self, name: str, command: Command) -> Ran:
        """Run a command as the sandbox's user."""
        toolbox = await persistently(lambda: self._inside(name), self._patience)
        return await toolbox.run(command)

    async def put(self, name: str, files: Collection[File]) -> None:
        """Put files below our folder; a sandbox that is stopped is started for that, but not its program."""

        async def once() -> None:
            await (await self._inside(name, wake=True)).put(files)

        await persistently(once, self._patience)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content; a sandbox that is stopped is started for that, but not its program."""

        async def once() -> bytes:
            return await (await self._inside(name, wake=True)).read(path, limit)

        return await persistently(once, self._patience)

    async def address(self, name: str, port: int) -> Address:
        """Daytona's own way to a port. What it wants to be shown there is another one after each start."""
        return await persistently(lambda: self._address(name, port), self._patience)

    async def changes(self) -> AsyncIterator[str]:
        """What has changed since the last look: Daytona tells of its sandboxes' states, but of no program's end."""
        before = await self._standing()
        while True:
            await asyncio.sleep(self._kind.look_interval)
            now = await self._standing()
            for name in sorted(now.keys() | before.keys()):
                if now.get(name) != before.get(name):
                    yield name
            before = now

    async def close(self) -> None:
        """Close the connections."""
        await self._daytona.close()

    # --- one try of each ---------------------------------------------------------------------------------------

    async def _made(self, spec: BoxSpec) -> AsyncSandbox:
        """A new one; also where the answer is lost, or says that it failed: what is found then is looked at."""
        try:
            return await making.make(self._daytona, spec, self._kind, self._telling)
        except ProviderError as error:
            found = await self._look(spec.name) if error.fault is ProviderFault.TRANSIENT else None
            if found is None:
                raise
        return found

    async def _settled(self, sandbox: AsyncSandbox, spec: BoxSpec) -> AsyncSandbox:
        """The same once it can be worked with. One that failed before anything ran in it is removed, and said."""
        if state_of(sandbox) in ENDING:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: another {spec.name} is still being removed")
        if RUNS in sandbox.labels:
            return sandbox
        if state_of(sandbox) in FAILED:
            error = making.failed(sandbox, spec, self._kind, self._telling)  # news of its removal will change its state
            await self.remove(spec.name)
            raise error
        with self._telling.faults(f"starting {spec.name}"):
            if state_of(sandbox) in RESTING:
                await within(self._kind.patience, sandbox.start(0))
            await within(self._kind.patience, sandbox.wait_for_sandbox_start(0))
        return sandbox

    async def _begun(self, sandbox: AsyncSandbox, spec: BoxSpec) -> Box:
        """Started, unless it was before."""
        if state_of(sandbox) != State.STARTED:
            return sandboxes.box(sandbox, None)
        toolbox = Toolbox(sandbox, self._telling)
        life = await toolbox.life()
        if not life.runs:
            await toolbox.furnish(spec, self._bundled)
            await self._relabel(sandbox, {RUNS: "1"})
            life = await toolbox.start(1)
        return sandboxes.box(sandbox, life)

    async def _address(self, name: str, port: int) -> Address:
        sandbox = await self._known(name)
        if state_of(sandbox) != State.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} does not run: it is {state_of(sandbox)}")
        with self._telling.faults(f"looking for port {port} of {name}"):
            found = await within(self._kind.patience, sandbox.get_preview_link(port))
        return Address(found.url.rstrip("/"), {_SHOWN: found.token} if found.token else {})

    async def _start(self, name: str) -> None:
        box = await self._shown(await self._known(name))
        if box.alive:
            return
        toolbox = await self._inside(name, wake=True)
        life = await toolbox.life()
        await self._label(name, {RUNS: str(life.runs + 1), END: None})
        await toolbox.start(life.runs + 1)

    async def _ended(self, sandbox: AsyncSandbox, grace: float) -> ProgramEnd | None:
        """How its program has ended, which was asked to; None: nobody could say that."""
        try:
            return (await Toolbox(sandbox, self._telling).stop(grace, self._patience)).end
        except ProviderError as error:
            _log.warning("stopping a sandbox that does not answer", sandbox=sandbox.name, error=str(error))
        return None

    async def _stop(self, name: str, end: ProgramEnd | None) -> None:
        sandbox = await self._look(name)
        if sandbox is None or state_of(sandbox) in ENDING | RESTING | FAILED:
            return
        await self._relabel(sandbox, {END: sandboxes.telling(end)})
        with self._telling.faults(f"stopping {name}"):
            await within(self._kind.patience, sandbox.stop(0))

    async def _pause(self, name: str) -> None:
        sandbox = await self._known(name)
        if state_of(sandbox) not in {State.PAUSED, State.PAUSING}:
            if not (await self._shown(sandbox)).alive:
                raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} does not run")
            with self._telling.faults(f"pausing {name}"):
                await within(self._kind.patience, sandbox.pause(0))
        if state_of(sandbox) != State.PAUSED:
            raise ProviderError(
                ProviderFault.TRANSIENT, f"daytona: {name} does not stand still yet: it is {state_of(sandbox)}"
            )

    async def _remove(self, name: str) -> None:
        sandbox = await self._look(name)
        if sandbox is None:
            return
        with self._telling.faults(
            f"removing {name}, which counts against the quota until it is gone; it was asked for, and asked again"
        ):
            await within(self._kind.patience, sandbox.delete(0, wait=True))
