"""What the agent of one box makes its box say: it harms nobody else, and its box is ended all the same."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import BoxState
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError
from tests.doubles.remote.double import ApiError, Double
from tests.doubles.remote.opening import remote
from tests.integration.runtimes.conftest import Boxes

RUN = "/sandherd/run"
LIES = (
    "echo rubbish > runs",
    "echo -5 > runs",
    "echo 99999999999999999999 > made",
    "echo '[1]' > labels",
    "echo '{' > labels",
    "printf '[%.0s' $(seq 1 20000) > labels",
    "head -c 100 /dev/urandom > labels",
    """echo '{"sandherd.dev/herd": "another"}' > labels""",
    "echo rubbish > end",
    "touch aside",
)


@pytest.fixture
async def at(remote_double: Double) -> AsyncIterator[Boxes]:
    """Boxes that are given up soon."""
    boxes = Boxes(remote(remote_double, init_timeout=2.0))
    yield boxes
    remote_double.faults.clear()
    await boxes.close()
    assert remote_double.living() == []


@pytest.mark.parametrize("lie", LIES)
async def test_what_an_agent_writes_hides_neither_its_box_nor_another(at: Boxes, lie: str) -> None:
    """Both are found, by name and by their herd."""
    liar, other = await at.make(), await at.make()
    runtime = BoxRuntime(at.provider, at.herd)
    assert (await at.sh(liar, f"cd {RUN}; {lie}")).code == 0
    assert {seen.unit for seen in await runtime.find_all()} == {liar.name, other.name}
    assert await runtime.look(liar.name) is not None
    await runtime.stop(liar.name, 0)
    assert {seen.unit: seen.alive for seen in await runtime.find_all()} == {liar.name: False, other.name: True}


@pytest.mark.parametrize("status", [502, 403])
async def test_a_sandbox_whose_agent_server_is_gone_is_ended_all_the_same(
    at: Boxes, remote_double: Double, status: int
) -> None:
    """Its agent has ended that server, or sits in its place and refuses: it is seen, and stopped in the end."""
    box, runtime = await at.make(), BoxRuntime(at.provider, at.herd)
    pod = remote_double.of(box.name)
    remote_double.fail("POST", f"^/sandbox/{pod.id}/", times=10_000, error=ApiError(status, "no", "no answer"))
    async with asyncio.timeout(40):
        while (seen := await runtime.look(box.name)) is not None:
            assert seen.alive
            try:
                await runtime.stop(box.name, 0)
            except RuntimeFailedError as error:
                assert "no answer" in str(error)  # noqa: PT017  # once it is none, the loop ends
    assert remote_double.living() == []


async def test_a_look_that_lies_is_read_as_far_as_it_can_be(at: Boxes) -> None:
    """It has begun; what it says of its end is not believed beyond that there was one."""
    box = await at.make()
    await at.sh(box, f"cd {RUN}; echo rubbish > end; echo x > runs; echo x > made")
    found = await at.provider.get(box.name)
    assert found is not None
    assert (found.state, found.runs, found.labels[HERD]) == (BoxState.STOPPED, 1, at.herd)
    assert found.end is not None
    assert found.end.code is None
