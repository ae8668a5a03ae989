"""An account at Daytona: finding its sandboxes, looking into them, and marking them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from daytona import AsyncDaytona, AsyncSandbox, DaytonaNotFoundError, ListSandboxesQuery

from spawner.runtimes.boxes.provider import Box, BoxState, ProviderError, ProviderFault
from spawner.runtimes.boxes.retrying import Patience, persistently
from spawner.runtimes.daytona import sandboxes
from spawner.runtimes.daytona.faults import Telling
from spawner.runtimes.daytona.patience import within
from spawner.runtimes.daytona.sandboxes import MARK, RESTING, Kind, State, state_of
from spawner.runtimes.daytona.toolbox import Toolbox

_AT_ONCE: Final = 8
"""How many sandboxes are looked into at the same time."""


class Account:
    """What every question to Daytona goes through. Raises `ProviderError`, never an error of the SDK."""

    def __init__(self, daytona: AsyncDaytona, kind: Kind, patience: Patience) -> None:
        self._daytona = daytona
        self._kind = kind
        self._patience = patience
        self._telling = Telling(kind.secrets)
        self._several = asyncio.Semaphore(_AT_ONCE)

    async def _look(self, name: str) -> AsyncSandbox | None:
        with self._telling.faults(f"looking for {name}"):
            try:
                found = await self._daytona.get(name, self._kind.patience)
            except DaytonaNotFoundError:
                return None
        return None if state_of(found) == State.DESTROYED else found

    async def _known(self, name: str) -> AsyncSandbox:
        sandbox = await self._look(name)
        if sandbox is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"daytona: there is no box {name}")
        return sandbox

    async def _listed(self, labels: Mapping[str, str]) -> list[AsyncSandbox]:
        async def once() -> list[AsyncSandbox]:
            with self._telling.faults("listing sandboxes"):
                query = ListSandboxesQuery(labels={**MARK, **labels})
                return [one async for one in self._daytona.list(query, self._kind.patience)]

        return [one for one in await persistently(once, self._patience) if state_of(one) != State.DESTROYED]

    async def _shown(self, sandbox: AsyncSandbox) -> Box:
        """As it is outside and inside. That nobody answers inside is told, and not taken for an end."""
        if state_of(sandbox) != State.STARTED:
            return sandboxes.box(sandbox, None)
        async with self._several:
            try:
                life = await Toolbox(sandbox, self._telling).life()
            except ProviderError as error:
                return sandboxes.box(sandbox, None, str(error))
        return sandboxes.box(sandbox, life)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All sandboxes of ours with these labels."""
        return await asyncio.gather(*(self._shown(one) for one in await self._listed(labels)))

    async def _standing(self) -> dict[str, tuple[BoxState, int, bool]]:
        boxes = await self.find({})
        return {box.name: (box.state, box.runs, box.end is None) for box in boxes}

    async def _inside(self, name: str, *, wake: bool = False) -> Toolbox:
        sandbox = await self._known(name)
        if wake and state_of(sandbox) in RESTING:
            with self._telling.faults(f"starting {name}"):
                await within(self._kind.patience, sandbox.start(0))
        if state_of(sandbox) != State.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} does not run: it is {state_of(sandbox)}")
        return Toolbox(sandbox, self._telling)

    async def _label(self, name: str, changed: Mapping[str, str | None]) -> None:
        sandbox = await self._look(name)
        if sandbox:
            await self._relabel(sandbox, changed)

    async def _relabel(self, sandbox: AsyncSandbox, changed: Mapping[str, str | None]) -> None:
        """All labels are written at once, Daytona's own among them: it knows no way to change one."""
        labels = {key: value for key, value in {**sandbox.labels, **changed}.items() if value is not None}
        with self._telling.faults(f"labelling {sandbox.name}"):
            await within(self._kind.patience, sandbox.set_labels(labels))
