"""Letting a sandbox stand still: by the kernel's freezer where there is one, else by a signal to each process."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spawner.runtimes import cgroups, processes
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.ending import Ending
from spawner.runtimes.layout import Place

_PATIENCE: Final = 5.0
_LOOK_AGAIN: Final = 0.005


@dataclass(frozen=True)
class Freezing:
    """Freezes all processes of a sandbox and lets them go on. Both are safe to repeat."""

    groups: cgroups.Groups
    ending: Ending

    async def freeze(self, place: Place) -> None:
        """Return when all of them stand still. Raises `RuntimeFailedError` (`unavailable`) if some do not."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while not self._stands_still(place):
            if asyncio.get_running_loop().time() > deadline:
                await self.thaw(place)
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} does not stand still")
            self._tell_to_stand_still(place)
            await asyncio.sleep(_LOOK_AGAIN)

    async def thaw(self, place: Place) -> None:
        """Let them go on. One whose groups are gone has nothing frozen in them."""
        if self.groups.freezer:
            with suppress(OSError):
                self.groups.set_frozen(place.name, frozen=False)
            return
        for pid in self.ending.members(place):
            if (process := processes.find(pid)) and processes.is_stopped(pid):
                process.signal(signal.SIGCONT)

    def is_told(self, place: Place) -> bool | None:
        """Whether it stands still or was told to; None if that can't be known.

        Where there is no freezer, the first that is told stands for all: no agent can tell it, if it is isolated.
        """
        if self.groups.freezer:
            return self.groups.told_frozen(place.name)
        first = self.ending.first(place)
        return all(processes.is_stopped(pid) and not processes.is_zombie(pid) for pid in first) if first else None

    def _tell_to_stand_still(self, place: Place) -> None:
        if self.groups.freezer:
            try:
                self.groups.set_frozen(place.name, frozen=True)
            except OSError as error:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name}: {error}") from error
            return
        # The oldest first: what starts others is still before they are.
        for pid in sorted(self.ending.members(place)):
            if process := processes.find(pid):
                process.signal(signal.SIGSTOP)

    def _stands_still(self, place: Place) -> bool:
        if self.groups.freezer:
            return self.groups.is_frozen(place.name)
        return all(processes.is_stopped(pid) for pid in self.ending.members(place))
