"""What is asked about sandboxes durably: end one."""

from typing import Any

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import DONE, Dead, Delivery, Outcome
from sandherd.contracts.commands import Command, TerminateSandbox
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from spawner.live import Live
from spawner.refusing import unknown
from spawner.sandboxes import decisions as of_sandbox


class SandboxCommands:
    """Obeys the commands about sandboxes."""

    def __init__(self, bus: Bus, live: Live) -> None:
        self._bus = bus
        self._live = live

    async def obey(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        """One command, to its end. Raises `StoreUnavailableError`."""
        match command.data:
            case TerminateSandbox() as terminate:
                return await self._terminate(command, terminate, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not about a sandbox"))

    async def _terminate(self, command: Envelope[Any], terminate: TerminateSandbox, delivery: Delivery) -> Outcome:
        now = self._live.now()
        reason = terminate.reason or "terminated"
        held = await self._live.change_sandbox(
            f"{command.project}.{terminate.sandbox}", lambda record: of_sandbox.stopping(record, reason, now)
        )
        return DONE if held else unknown("sandbox", terminate.sandbox, delivery)
