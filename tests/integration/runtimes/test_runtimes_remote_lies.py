"""What the agent of one box makes its box say: it harms nobody else, and its box is ended all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.contracts.specs import Limits
from sandherd.contracts.states import SandboxState
from spawner.records.known import Known
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import BoxState, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes.kept import Kept
from spawner.sandboxes.record import SandboxRecord
from tests.doubles.remote.double import ApiError, Double
from tests.doubles.remote.opening import remote
from tests.integration.runtimes.conftest import Boxes
from tests.patience import PATIENCE

RUN = "/sandherd/run"
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
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
    """Boxes at the double; whatever is left of them at the end is an orphan."""
    boxes = Boxes(remote(remote_double))
    yield boxes
    remote_double.faults.clear()
    await boxes.close()
    assert remote_double.living() == []


def records_of(name: str) -> Any:
    """The records of a spawner that knows of one sandbox, which has failed with nothing unsaid."""
    record = SandboxRecord(
        project="p1", sandbox=name, runtime="remote", limits=Limits(), state=SandboxState.FAILED, requested_at=BEGIN
    )

    async def load(_key: str) -> Any:
        return SimpleNamespace(record=record)

    return SimpleNamespace(
        meters=SimpleNamespace(set=lambda *_: None),
        sandboxes=SimpleNamespace(load=load),
        sandbox_index={record.key: Known(1, record.view(), unsaid=False)},
    )


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
    box, hasty = await at.make(), remote(remote_double, init_timeout=2.0)
    runtime = BoxRuntime(hasty, at.herd)
    pod = remote_double.of(box.name)
    remote_double.fail("POST", f"^/sandbox/{pod.id}/", times=10_000, error=ApiError(status, "no", "no answer"))
    async with asyncio.timeout(PATIENCE):
        while (seen := await runtime.look(box.name)) is not None:
            assert seen.alive
            try:
                await runtime.stop(box.name, 0)
            except RuntimeFailedError as error:
                assert "no answer" in str(error)  # noqa: PT017  # once it is none, the loop ends
    assert remote_double.living() == []
    await hasty.close()


async def test_what_an_agent_puts_aside_itself_is_stopped_and_removed(at: Boxes, remote_double: Double) -> None:
    """It has ended the keeper and lives on: a stop ends it all the same, and so does the sweep, for what has ended."""
    box, runtime = await at.make(f"setsid sleep 7654 & echo $! > {RUN}/own; wait"), BoxRuntime(at.provider, at.herd)
    await at.sh(box, f"cd {RUN}; until [ -s own ] && read -r pid born < keeper; do :; done; kill -9 $pid; touch aside")
    assert (await runtime.find_kept(), await runtime.look(box.name)) == ([box.name], None)
    lives = f"grep -qs sleep /proc/$(cat {RUN}/own)/cmdline && echo lives; true"
    assert (await at.sh(box, lives)).out == b"lives\n"
    await runtime.stop(box.name, 0)
    assert (await at.sh(box, lives)).out == b""
    nobody: Any = None
    await Kept(records_of(box.name), nobody).tend({box.name: runtime}, BEGIN)
    assert remote_double.living() == []


async def test_a_box_that_is_not_ready_is_not_said_to_be_stopped(at: Boxes, remote_double: Double) -> None:
    """Its program may run: that is said for as long as it may take to be ready, then it is given up."""
    box, hasty = await at.make(), remote(remote_double, init_timeout=2.0)
    remote_double.of(box.name).pod_status = "not ready"
    with pytest.raises(ProviderError, match="not ready") as caught:
        await hasty.stop(box.name, 0)
    assert caught.value.fault is ProviderFault.TRANSIENT
    async with asyncio.timeout(PATIENCE):
        while remote_double.living():
            with suppress(ProviderError):
                await hasty.stop(box.name, 0)
    await hasty.close()


async def test_a_look_that_lies_is_read_as_far_as_it_can_be(at: Boxes) -> None:
    """It has begun; what it says of its end is not believed beyond that there was one."""
    box = await at.make()
    await at.sh(box, f"cd {RUN}; echo rubbish > end; echo x > runs; echo x > made")
    found = await at.provider.get(box.name)
    assert found is not None
    assert (found.state, found.runs, found.labels[HERD]) == (BoxState.STOPPED, 1, at.herd)
    assert found.end is not None
    assert found.end.code is None
