"""The real broker as one spawner sees it: each request passes its gate, and writes are noted in the broker's order."""

from collections.abc import Mapping
from typing import Any, Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from sandherd.bus.connection import Bus, ConnectionCallbacks
from tests.integration.spawner.scripted.gate import Gate


class Noted(Protocol):
    """A function that is called with a request to store something, and with the broker's reply."""

    def note(self, subject: str, payload: bytes, headers: Mapping[str, str], answer: bytes) -> None:
        """Send one request over the connection."""


class GatedClient:
    """The real connection, but every request passes a gate."""

    def __init__(self, real: Client, gate: Gate, noted: Noted) -> None:
        self._real = real
        self._gate = gate
        self._noted = noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 5, headers: Any = None, **rest: Any
    ) -> Msg:
        async def ask() -> Msg:
            answer = await self._real.request(subject, payload, timeout=timeout, headers=headers, **rest)
            self._noted.note(subject, payload, headers or {}, answer.data)
            return answer

        return await self._gate.act(subject, ask)


def gated(real: Bus, gate: Gate, noted: Noted) -> Bus:
    """A bus over the same connection, whose requests pass this gate."""
    bus = Bus(real.name, ConnectionCallbacks())
    bus.client = GatedClient(real.client, gate, noted)  # type: ignore[assignment]  # the real one, gated
    bus.js = JetStreamContext(bus.client, timeout=5)
    return bus
