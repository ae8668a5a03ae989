"""An account at Daytona: finds its sandboxes, reads their state, and sets their labels."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from daytona import AsyncDaytona, AsyncSandbox, DaytonaNotFoundError, ListSandboxesQuery

from spawner.runtimes.boxes.provider import Box, BoxState, ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import RetryLimits, with_retry
from spawner.runtimes.daytona import sandboxes
from spawner.runtimes.daytona.faults import DaytonaFaults, within
from spawner.runtimes.daytona.sandboxes import MARK, RESTING, DaytonaOptions, DaytonaState, state_of
from spawner.runtimes.daytona.toolbox import Toolbox

_AT_ONCE: Final = 8
"""The maximum number of sandboxes whose state is read concurrently."""


class DaytonaAccount:
    """The base of all requests to Daytona. Raises `ProviderError`, never an error of the SDK."""

    def __init__(self, daytona: AsyncDaytona, kind: DaytonaOptions, patience: RetryLimits) -> None:
        self._daytona = daytona
        self._kind = kind
        self._patience = patience
        self._errors = DaytonaFaults(kind.secrets)
        self._several = asyncio.Semaphore(_AT_ONCE)

    async def _find(self, name: str) -> AsyncSandbox | None:
        with self._errors.faults(f"reading {name}"):
            try:
                found = await self._daytona.get(name, self._kind.patience)
            except DaytonaNotFoundError:
                return None
        return None if state_of(found) == DaytonaState.DESTROYED else found

    async def _existing(self, name: str) -> AsyncSandbox:
        sandbox = await self._find(name)
        if sandbox is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"daytona: box {name} does not exist")
        return sandbox

    async def _list(self, labels: Mapping[str, str]) -> list[AsyncSandbox]:
        async def once() -> list[AsyncSandbox]:
            with self._errors.faults("listing sandboxes"):
                query = ListSandboxesQuery(labels={**MARK, **labels})
                return [one async for one in self._daytona.list(query, self._kind.patience)]

        return [one for one in await with_retry(once, self._patience) if state_of(one) != DaytonaState.DESTROYED]

    async def _box_of(self, sandbox: AsyncSandbox) -> Box:
        """The box, from Daytona's state and its toolbox. If the toolbox does not respond, the box counts as alive."""
        if state_of(sandbox) != DaytonaState.STARTED:
            return sandboxes.box(sandbox, None)
        async with self._several:
            try:
                life = await Toolbox(sandbox, self._errors).life()
            except ProviderError as error:
                return sandboxes.box(sandbox, None, str(error))
        return sandboxes.box(sandbox, life)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All our sandboxes with these labels."""
        return await asyncio.gather(*(self._box_of(one) for one in await self._list(labels)))

    async def _states_by_name(self) -> dict[str, tuple[BoxState, int, bool]]:
        boxes = await self.find({})
        return {box.name: (box.state, box.runs, box.end is None) for box in boxes}

    async def _toolbox_of(self, name: str, *, wake: bool = False) -> Toolbox:
        """The toolbox of a started sandbox. `wake`: start a stopped or archived sandbox. Raises `ProviderError`."""
        sandbox = await self._existing(name)
        if wake and state_of(sandbox) in RESTING:
            with self._errors.faults(f"starting {name}"):
                await within(self._kind.patience, sandbox.start(0))
        if state_of(sandbox) != DaytonaState.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running: it is {state_of(sandbox)}")
        return Toolbox(sandbox, self._errors)

    async def _label(self, name: str, changed: Mapping[str, str | None]) -> None:
        sandbox = await self._find(name)
        if sandbox:
            await self._relabel(sandbox, changed)

    async def _relabel(self, sandbox: AsyncSandbox, changed: Mapping[str, str | None]) -> None:
        """Write all labels, including Daytona's own: its API can't change a single label."""
        labels = {key: value for key, value in {**sandbox.labels, **changed}.items() if value is not None}
        with self._errors.faults(f"labelling {sandbox.name}"):
            await within(self._kind.patience, sandbox.set_labels(labels))
