"""What a process of ours loads, and what it does not."""

import subprocess
import sys
from typing import Any

from sandherd.contracts.requests import ListLiveTasks
from sandherd.contracts.subjects import Principal
from sandherd.service.request_budget import Budget
from sandherd.service.request_queue import RequestLane
from sandherd.service.request_scheduler import RequestLimits
from sandherd.service.request_spans import RequestSpans
from sandherd.service.requests import RequestRouter

HEAVY = ("aiohttp", "rich")
PROGRAMS = (
    "sandherd.cli.herd_session",
    "sandherd.cli.local_stack",
    "sandherd.stack.supervisor",
    "spawner.main",
    "spawner.sandbox_shutdown",
    "event_ingest.main",
    "message_relay.main",
    "monitor.main",
)


def loaded(program: str) -> set[str]:
    """What of the heavy modules a program has loaded at its end."""
    return set(printed(f"{program}\nprint(*(name for name in {HEAVY} if sys.modules.get(name)))").split())


def printed(program: str) -> str:
    """The output of a Python program, run in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", f"import sys\n{program}"], check=True, capture_output=True, text=True)
    return done.stdout


def test_no_program_loads_unused_libraries() -> None:
    """Neither a command nor a service loads aiohttp or rich at its start.

    One interpreter imports all of them in turn: a module that is absent after the last import was loaded by none.
    """
    asks = f"""
from importlib import import_module
for program in {PROGRAMS}:
    import_module(program)
    print(*(f"{{program}} loads {{name}}" for name in {HEAVY} if sys.modules.get(name)))
"""
    assert printed(asks).split("\n") == [""] * (len(PROGRAMS) + 1)


def test_subscribers_of_requests_have_no_mocks() -> None:
    """FastStream gives each subscriber a mock for its test brokers: classes made anew at each start of a service."""
    unused: Any = None
    router = RequestRouter(Principal.SPAWNER, unused, RequestLimits(10, Budget(60, 1000)), RequestSpans(0))
    router.add(ListLiveTasks, unused, RequestLane.of_kind(ListLiveTasks.type, 1))
    (subscriber,) = router.broker(unused).subscribers
    recorder: Any = subscriber.calls[0].handler._recorder
    assert not hasattr(recorder.mock, "assert_called_once")


def test_worker_loads_no_unused_libraries() -> None:
    """The worker loads what it needs when it begins."""
    begins = (
        "import sandherd_worker.main as worker\nassert worker.main([]) != 0\nimport sandherd_worker.worker_lifecycle"
    )
    assert loaded(begins) == set()


def test_websocket_url_loads_its_client() -> None:
    """A URL as `ws://…` is connected to by a real websocket: the error is the connection's, not a missing module's."""
    connects = """
import asyncio
from sandherd.bus.connection import nats
from nats.aio.transport import WebSocketTransport
from urllib.parse import urlsplit
async def main():
    transport = WebSocketTransport()
    try:
        await transport.connect(urlsplit("ws://127.0.0.1:1"), 1, 5)
    except OSError as error:
        assert "127.0.0.1:1" in str(error), error
    else:
        raise AssertionError
    await transport._client.close()
asyncio.run(main())
"""
    assert "aiohttp" in loaded(connects)
