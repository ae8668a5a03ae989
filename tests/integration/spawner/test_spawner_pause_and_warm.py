"""Paused sandboxes of the process runtime, and warm ones that wait for an assignment."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.identity.keys import Key, KeyKind
from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan, WarmPlan
from spawner.runtimes.warm_workers import public_key

Open = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
Eventually = Callable[..., Awaitable[Any]]
COUNTS = (
    "import os, pathlib, signal, time\nsignal.signal(15, lambda *_: os._exit(0))\n"
    "if os.fork(): pathlib.Path('up').touch()\nname = f'count-{os.getpid()}'\n"
    "while True:\n    open(name, 'a').write('x'); time.sleep(0.01)"
)
REPORTS = (
    "import json, os, pathlib\nstate = pathlib.Path(os.environ['SANDHERD_STATE_DIR'])\n"
    "import sandherd_worker.warm_start as warm\nimport sys\nfound = dict(os.environ)\n"
    "if '--warm' in sys.argv: found = warm.wait_for_identity(os.environ)\n"
    "if found:\n    pathlib.Path('telling').write_text(json.dumps(found))\n    os.replace('telling', 'told')"
)


ENDS = "import os\nfrom sandherd_worker.warm_start import wait_for_identity\nwait_for_identity(os.environ)\nos._exit(0)"


def counted(runtime: Any, unit: str) -> list[int]:
    return sorted(path.stat().st_size for path in runtime.layout.directory(unit).work.glob("count-*"))


@pytest.mark.parametrize("options", [{}, {"use_groups": False}], ids=["by the kernel's freezer", "by signals"])
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_paused_sandbox_freezes_every_process(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, options: dict[str, Any], isolation: str
) -> None:
    """No process of a frozen sandbox runs; it can continue, and it can be ended while it is frozen."""
    runtime = await open_process(COUNTS, isolation, **options)
    for unit in ("sbx-1", "sbx-2"):
        await runtime.create(plan_for(unit))
        await eventually(lambda unit=unit: len(counted(runtime, unit)) == 2)
    await runtime.pause("sbx-1")
    await runtime.pause("sbx-1")
    frozen, other = counted(runtime, "sbx-1"), counted(runtime, "sbx-2")
    await eventually(lambda: all(now > then + 5 for now, then in zip(counted(runtime, "sbx-2"), other, strict=True)))
    assert counted(runtime, "sbx-1") == frozen
    assert [(seen.alive, seen.frozen) for seen in await runtime.find_all()] == [(True, True), (True, False)]
    await runtime.resume("sbx-1")
    assert not (await runtime.observe("sbx-1")).frozen
    await eventually(lambda: all(now > then for now, then in zip(counted(runtime, "sbx-1"), frozen, strict=True)))
    await runtime.pause("sbx-1")
    await runtime.stop("sbx-1", 5)
    seen = await runtime.observe("sbx-1")
    assert (seen.alive, seen.end.code, seen.frozen) == (False, 0, None)
    await runtime.pause("sbx-2")
    await runtime.remove("sbx-2")
    assert await runtime.observe("sbx-2") is None


async def test_pause_of_a_missing_sandbox_is_refused(open_process: Open) -> None:
    """A pause of a missing sandbox fails with the fault `lost`."""
    runtime = await open_process(COUNTS)
    with pytest.raises(RuntimeFailedError) as caught:
        await runtime.pause("sbx-none")
    assert caught.value.fault is RuntimeFault.LOST


async def test_warm_unit_becomes_the_assigned_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A warm unit gets the variables of a cold start; if it is assigned twice, it begins once."""
    runtime = await open_process(REPORTS)
    await runtime.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
    await runtime.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
    seen = await runtime.observe("wrm-1")
    assert (seen.alive, seen.runs, seen.project) == (True, 1, None)
    place = runtime.layout.directory("wrm-1")
    assert not place.joiner.exists()
    await runtime.create(replace(plan_for("sbx-1"), unit="wrm-1"))
    await runtime.create(replace(plan_for("sbx-1"), unit="wrm-1"))
    await eventually((place.work / "told").exists)
    await runtime.create(plan_for("sbx-2"))
    cold = runtime.layout.directory("sbx-2").work / "told"
    await eventually(cold.exists)
    assert (await runtime.observe("wrm-1")).runs == 1
    warm_text = (place.work / "told").read_text().replace("wrm-1", "sbx-2").replace("sbx-1", "sbx-2")
    assert variables_of(warm_text) == variables_of(cold.read_text())


def variables_of(text: str) -> dict[str, str]:
    return {name: value for name, value in json.loads(text).items() if name.isupper() and name != "PWD"}


async def test_dead_warm_unit_is_started_again_when_claimed(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """The claim of a unit that has ended still gets a sandbox."""
    runtime = await open_process(REPORTS)
    await runtime.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
    await runtime.termination.end_all(runtime.layout.directory("wrm-1"))
    assert not (await runtime.observe("wrm-1")).alive
    await runtime.create(replace(plan_for("sbx-1"), unit="wrm-1"))
    await eventually((runtime.layout.directory("wrm-1").work / "told").exists)
    assert (await runtime.observe("wrm-1")).project == "p1"


async def test_warm_worker_that_ends_at_once_was_started(open_process: Open, plan_for: PlanFor) -> None:
    """A claimed unit that ended at once was started: a create that started it again would repeat the agent's work."""
    runtime = await open_process(ENDS)
    await runtime.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
    await runtime.create(replace(plan_for("sbx-1"), unit="wrm-1"))
    seen = await runtime.observe("wrm-1")
    assert (seen.runs, seen.project) == (1, "p1")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "large", "other key"])
async def test_only_a_public_key_in_a_file_is_taken(open_process: Open, tmp_path: Path, kind: str) -> None:
    """The spawner waits for no writer and follows no link: an agent may have replaced the key's file by anything."""
    runtime = await open_process(REPORTS)
    await runtime.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
    path = runtime.layout.directory("wrm-1").state / "worker.pub"
    path.unlink(missing_ok=True)
    key = Key.new(KeyKind.USER).public
    (tmp_path / "key").write_text(key)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(tmp_path / "key")
        case "folder":
            path.mkdir()
        case "large":
            path.write_text(key + "x" * 1_000_000)
        case _:
            path.write_text(Key.new(KeyKind.ACCOUNT).public)
    assert await asyncio.to_thread(public_key, runtime.layout.directory("wrm-1")) is None


async def test_previous_attempt_is_offered(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """The worker finds the offered attempt and a folder for it; without an offer it gets neither."""
    runtime = await open_process(REPORTS)
    offer = Previous(attempt=1, sandbox="sbx-0", error="no", error_type="worker_lost")
    await runtime.create(replace(plan_for("sbx-1"), previous=offer, attempt=2, max_work_bytes=5))
    await runtime.create(replace(plan_for("sbx-2"), task=None))
    texts = [runtime.layout.directory(unit).work / "told" for unit in ("sbx-1", "sbx-2")]
    for text in texts:
        await eventually(text.exists)
    given, bare = (variables_of(text.read_text()) for text in texts)
    assert given["SANDHERD_PREVIOUS_FILE"] == "/sandbox/state/previous.json"
    assert given["SANDHERD_PREVIOUS_DIR"] == "/sandbox/previous"
    assert (given["SANDHERD_MAX_WORK_BYTES"], given["SANDHERD_ATTEMPT"]) == ("5", "2")
    assert Previous.model_validate_json(runtime.layout.directory("sbx-1").previous_file.read_text()) == offer
    assert {"SANDHERD_PREVIOUS_FILE", "SANDHERD_TASK_ID"}.isdisjoint(bare)
