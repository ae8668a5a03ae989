"""An agent forges or prevents reports of its Daytona sandbox, which is stopped nevertheless."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.runtime import BoxRuntime
from tests.doubles.daytona.answers import ApiError
from tests.doubles.daytona.double import Double
from tests.doubles.daytona.provider import cloud
from tests.integration.runtimes.conftest import Boxes
from tests.patience import PATIENCE

RUN = "/sandherd/run"
LIES = (
    "echo x > 1.exit",
    "echo 'x y' > 1.exit",
    "echo '-1 x' > 1.exit",
    f"echo '{'9' * 5000} 0' > 1.exit",
    "echo '٣ 0' > 1.exit",
    ": > 1.exit",
    "head -c 100000 /dev/urandom > 1.exit",
    "mkfifo 1.exit",
    "mkdir 1.exit",
    "rm -f 1.log; mkfifo 1.log; echo '0 0' > 1.exit",
    "rm -f 1.pid; mkfifo 1.pid",
    "echo x > 1.pid",
    "echo '1 x x x' > 1.pid",
    "rm -f *.pid",
    "rm -rf *",
    f"touch {'9' * 200}.pid",
    "rm -f 1.child; mkfifo 1.child",
)
TOOLBOX = "^/toolbox/"


@pytest.fixture
async def at(daytona_double: Double) -> AsyncIterator[Boxes]:
    """Boxes at the double; a box that is left at the end is an orphan."""
    boxes = Boxes(cloud(daytona_double))
    yield boxes
    daytona_double.faults.clear()
    await boxes.close()
    assert daytona_double.living() == []


async def test_forged_state_hides_no_sandbox_and_keeps_none_running(at: Boxes, daytona_double: Double) -> None:
    """Both sandboxes are found, by name and by herd, and Daytona stops the forger's soon after its grace."""
    other, runtime = await at.make(), BoxRuntime(at.provider, at.herd)
    for lie in LIES:
        liar = await at.make()
        assert (await at.sh(liar, f"cd {RUN}; {lie}")).code == 0, lie
        async with asyncio.timeout(PATIENCE):
            assert {seen.unit for seen in await runtime.find_all()} == {liar.name, other.name}, lie
            assert await runtime.observe(liar.name) is not None, lie
            await runtime.stop(liar.name, 0)
        assert daytona_double.of(liar.name).state == "stopped", lie
        assert {seen.unit: seen.alive for seen in await runtime.find_all()} == {liar.name: False, other.name: True}, lie
        await at.provider.remove(liar.name)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 429, 500, 502])
async def test_sandbox_is_stopped_despite_its_toolbox(at: Boxes, daytona_double: Double, status: int) -> None:
    """No error of the toolbox, which an agent may replace, prevents the stop."""
    box, runtime = await at.make(), BoxRuntime(at.provider, at.herd)
    path = f"{TOOLBOX}{daytona_double.of(box.name).shown['id']}/"
    daytona_double.fail("POST", path, times=10_000, error=ApiError(status, "no answer"))
    seen = await runtime.observe(box.name)
    assert seen is not None
    assert (seen.alive, seen.runs) == (True, 1)
    await runtime.stop(box.name, 0)
    assert daytona_double.of(box.name).state == "stopped"


async def test_sandbox_with_a_hanging_toolbox_is_stopped_after_its_grace(
    at: Boxes, daytona_double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toolbox is waited for once, with a limit; meanwhile another sandbox's state can be read."""
    mute, well = await at.make(), await at.make()
    monkeypatch.setattr(
        "spawner.runtimes.daytona.toolbox._READ_STATE_SECONDS", 5
    )  # within which the other one must respond
    monkeypatch.setattr("spawner.runtimes.daytona.toolbox._GRACE", 1)
    daytona_double.fail("POST", f"{TOOLBOX}{daytona_double.of(mute.name).shown['id']}/", times=10_000, slow=3600.0)
    async with asyncio.timeout(PATIENCE):
        found = {box.name: box for box in await at.provider.find({HERD: at.herd})}
    assert (found[mute.name].alive, bool(found[mute.name].problem)) == (True, True)
    assert (found[well.name].alive, found[well.name].problem) == (True, "")
    async with asyncio.timeout(PATIENCE):
        await at.provider.stop(mute.name, 1)
    assert daytona_double.of(mute.name).state == "stopped"


async def test_program_with_a_forged_end_is_stopped(daytona_double: Double, at: Boxes) -> None:
    """The processes of an ephemeral sandbox end, and its files can still be read."""
    ephemeral, spec = cloud(daytona_double, ephemeral=True), at.spec()
    box = await ephemeral.create(spec)
    child = (await at.sh(box, f"cat {RUN}/1.child; echo '0 0' > {RUN}/1.exit")).out.decode().strip()
    await ephemeral.stop(spec.name, 1)
    gone = await at.sh(box, f"! kill -0 {child} 2>/dev/null")
    await ephemeral.close()
    assert gone.code == 0
