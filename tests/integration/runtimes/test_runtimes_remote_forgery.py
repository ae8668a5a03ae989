"""An agent's forged reports of a remote sandbox affect no other, and its sandbox is stopped nevertheless."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SandboxState
from spawner.records.base_record import IndexEntry
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxState, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes.quarantine import Quarantine
from spawner.sandboxes.sandbox_record import SandboxRecord
from tests.doubles.remote.double import ApiError, Double
from tests.doubles.remote.provider import remote
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
    """Boxes at the double; a box that is left at the end is an orphan."""
    boxes = Boxes(remote(remote_double))
    yield boxes
    remote_double.faults.clear()
    await boxes.close()
    assert remote_double.living() == []


def records_of(name: str) -> Any:
    """Records of a spawner with one sandbox, which has failed and has published everything."""
    record = SandboxRecord(
        project="p1",
        sandbox=name,
        runtime="remote",
        limits=SandboxLimits(),
        state=SandboxState.FAILED,
        requested_at=BEGIN,
    )

    async def load(_key: str) -> Any:
        return SimpleNamespace(record=record)

    return SimpleNamespace(
        meters=SimpleNamespace(set=lambda *_: None),
        sandboxes=SimpleNamespace(load=load),
        sandbox_index={record.key: IndexEntry(1, record.view(), unsaid=False)},
    )


async def test_forged_state_hides_no_sandbox(at: Boxes) -> None:
    """Whatever one sandbox reports, both are found, by name and by their herd."""
    other, runtime = await at.make(), BoxRuntime(at.provider, at.herd)
    for lie in LIES:
        liar = await at.make()
        assert (await at.sh(liar, f"cd {RUN}; {lie}")).code == 0, lie
        assert {seen.unit for seen in await runtime.find_all()} == {liar.name, other.name}, lie
        assert await runtime.observe(liar.name) is not None, lie
        await runtime.stop(liar.name, 0)
        assert {seen.unit: seen.alive for seen in await runtime.find_all()} == {liar.name: False, other.name: True}, lie
        await at.provider.remove(liar.name)


@pytest.mark.parametrize("status", [502, 403])
async def test_sandbox_without_its_agent_server_is_stopped(at: Boxes, remote_double: Double, status: int) -> None:
    """A sandbox whose agent has ended or replaced the server is still seen, and is stopped in the end."""
    box, hasty = await at.make(), remote(remote_double, init_timeout=2.0)
    runtime = BoxRuntime(hasty, at.herd)
    pod = remote_double.of(box.name)
    remote_double.fail("POST", f"^/sandbox/{pod.id}/", times=10_000, error=ApiError(status, "no", "no answer"))
    async with asyncio.timeout(PATIENCE):
        while (seen := await runtime.observe(box.name)) is not None:
            assert seen.alive
            try:
                await runtime.stop(box.name, 0)
            except RuntimeFailedError as error:
                assert "no answer" in str(error)  # noqa: PT017  # once it is none, the loop ends
    assert remote_double.living() == []
    await hasty.close()


async def test_sandbox_marked_as_quarantined_by_its_agent_is_stopped(at: Boxes, remote_double: Double) -> None:
    """The agent has ended the keeper process: a stop and the sweep end the sandbox nevertheless."""
    box, runtime = await at.make(f"setsid sleep 7654 & echo $! > {RUN}/own; wait"), BoxRuntime(at.provider, at.herd)
    await at.sh(box, f"cd {RUN}; until [ -s own ] && read -r pid born < keeper; do :; done; kill -9 $pid; touch aside")
    assert (await runtime.list_quarantined(), await runtime.observe(box.name)) == ([box.name], None)
    lives = f"grep -qs sleep /proc/$(cat {RUN}/own)/cmdline && echo lives; true"
    assert (await at.sh(box, lives)).out == b"lives\n"
    await runtime.stop(box.name, 0)
    assert (await at.sh(box, lives)).out == b""
    no_one: Any = None
    await Quarantine(records_of(box.name), no_one).reconcile({box.name: runtime}, BEGIN)
    assert remote_double.living() == []


async def test_unready_sandbox_is_not_reported_as_stopped(at: Boxes, remote_double: Double) -> None:
    """Within the time to become ready the program may run, and the state says so; then it is given up."""
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


async def test_forged_state_of_a_program_is_read_partly(at: Boxes) -> None:
    """The program has begun; of its end only the fact is used."""
    box = await at.make()
    await at.sh(box, f"cd {RUN}; echo rubbish > end; echo x > runs; echo x > made")
    found = await at.provider.get(box.name)
    assert found is not None
    assert (found.state, found.runs, found.labels[HERD]) == (BoxState.STOPPED, 1, at.herd)
    assert found.end is not None
    assert found.end.code is None
