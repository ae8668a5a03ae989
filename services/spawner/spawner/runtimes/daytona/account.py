"""Finds the sandboxes of an account at Daytona, reads their state, and sets their labels."""

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

_MAX_CONCURRENT_READS: Final = 8
"""The maximum number of sandboxes whose state is read concurrently."""


class DaytonaAccount:
    """The base class of the provider. Its methods raise `ProviderError`, never an error of the SDK."""

    def __init__(self, daytona: AsyncDaytona, options: DaytonaOptions, retries: RetryLimits) -> None:
        self._daytona = daytona
        self._options = options
        self._retries = retries
        self._errors = DaytonaFaults(options.secrets)
        self._concurrent_reads = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    async def _find(self, name: str) -> AsyncSandbox | None:
        with self._errors.faults(f"reading {name}"):
            try:
                sandbox = await self._daytona.get(name, self._options.patience)
            except DaytonaNotFoundError:
                return None
        return None if state_of(sandbox) == DaytonaState.DESTROYED else sandbox

    async def _existing(self, name: str) -> AsyncSandbox:
        sandbox = await self._find(name)
        if sandbox is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"daytona: box {name} does not exist")
        return sandbox

    async def _list(self, labels: Mapping[str, str]) -> list[AsyncSandbox]:
        async def once() -> list[AsyncSandbox]:
            with self._errors.faults("listing sandboxes"):
                query = ListSandboxesQuery(labels={**MARK, **labels})
                return [sandbox async for sandbox in self._daytona.list(query, self._options.patience)]

        sandboxes = await with_retry(once, self._retries)
        return [sandbox for sandbox in sandboxes if state_of(sandbox) != DaytonaState.DESTROYED]

    async def _box_of(self, sandbox: AsyncSandbox) -> Box:
        """The box of a sandbox. If the sandbox's toolbox does not respond, its program counts as running."""
        if state_of(sandbox) != DaytonaState.STARTED:
            return sandboxes.box(sandbox, None)
        async with self._concurrent_reads:
            try:
                program = await Toolbox(sandbox, self._errors).program_state()
            except ProviderError as error:
                return sandboxes.box(sandbox, None, str(error))
        return sandboxes.box(sandbox, program)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All our sandboxes with these labels."""
        return await asyncio.gather(*(self._box_of(sandbox) for sandbox in await self._list(labels)))

    async def _states_by_name(self) -> dict[str, tuple[BoxState, int, bool]]:
        boxes = await self.find({})
        return {box.name: (box.state, box.runs, box.end is None) for box in boxes}

    async def _toolbox_of(self, name: str, *, wake: bool = False) -> Toolbox:
        """The toolbox of a started sandbox. `wake`: start a stopped or archived one first. Raises `ProviderError`."""
        sandbox = await self._existing(name)
        if wake and state_of(sandbox) in RESTING:
            with self._errors.faults(f"starting {name}"):
                await within(self._options.patience, sandbox.start(0))
        if state_of(sandbox) != DaytonaState.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running: it is {state_of(sandbox)}")
        return Toolbox(sandbox, self._errors)

    async def _set_labels_of(self, name: str, changes: Mapping[str, str | None]) -> None:
        sandbox = await self._find(name)
        if sandbox:
            await self._set_labels(sandbox, changes)

    async def _set_labels(self, sandbox: AsyncSandbox, changes: Mapping[str, str | None]) -> None:
        """Set labels, or remove those with the value None. Writes all labels: Daytona can't change a single one."""
        labels = {key: value for key, value in {**sandbox.labels, **changes}.items() if value is not None}
        with self._errors.faults(f"labelling {sandbox.name}"):
            await within(self._options.patience, sandbox.set_labels(labels))
