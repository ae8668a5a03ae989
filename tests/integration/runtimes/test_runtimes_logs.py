"""The log of a sandbox, as its container engine or its cluster stores it."""

import asyncio
from contextlib import aclosing

import pytest

from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.runtime_logs import LogQuery, LogSource
from tests.integration.runtimes.conftest import WORK, Boxes
from tests.patience import PATIENCE

PRINTS = f"echo one; echo two >&2; until [ -e {WORK}/on ]; do sleep 0.05; done; echo three"


@pytest.fixture(params=["docker", "kubernetes"])
def open_provider(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(f"open_{request.param}")


async def test_a_log_is_followed_to_its_end(boxes: Boxes) -> None:
    """Following returns stdout and stderr with later lines; otherwise the existing lines, or the last ones."""
    runtime = BoxRuntime(boxes.provider, boxes.herd)
    assert isinstance(runtime, LogSource)
    box = await boxes.make(PRINTS)
    seen, released = b"", False
    async with asyncio.timeout(PATIENCE), aclosing(runtime.logs(box.name, LogQuery(follow=True))) as pieces:  # type: ignore[type-var]  # a generator
        async for piece in pieces:
            seen += piece
            if b"two" in seen and not released:  # the streams come in any order; a second command finds no sandbox
                await boxes.sh(box, f"touch {WORK}/on")
                released = True
            if b"three" in seen:
                break
    assert sorted(seen.split()) == [b"one", b"three", b"two"]
    assert b"".join([piece async for piece in runtime.logs(box.name, LogQuery(lines=1))]) == b"three\n"


async def test_an_unknown_sandbox_has_no_log(boxes: Boxes) -> None:
    """The call fails with the fault `lost`, as every other call for an unknown sandbox."""
    with pytest.raises(RuntimeFailedError) as caught:
        [piece async for piece in BoxRuntime(boxes.provider, boxes.herd).logs("sbx-unknown", LogQuery())]
    assert caught.value.fault is RuntimeFault.LOST
