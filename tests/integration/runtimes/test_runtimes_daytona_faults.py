"""Failures of Daytona: each leads to its fault, and leaves nothing behind."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandherd.settings import Settings
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxSpec, BoxState, Command, ProviderError, ProviderFault
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.daytona.factory import open_daytona as open_runtime
from spawner.runtimes.daytona.provider import DaytonaProvider
from tests.doubles.daytona.answers import ApiError
from tests.doubles.daytona.double import IMAGE, KEY, SNAPSHOT, Double
from tests.doubles.daytona.provider import cloud
from tests.integration.runtimes.conftest import WAITS, WORK, Boxes

QUOTA = "Total CPU limit exceeded. Maximum allowed: 10.\nConsider archiving unused sandboxes."
THROTTLED = {"X-RateLimit-Remaining-sandbox-create": "0", "X-RateLimit-Limit-sandbox-create": "300"}


@pytest.fixture
async def at(daytona_double: Double) -> AsyncIterator[Boxes]:
    """Boxes at the double; a box that is left at the end is an orphan."""
    boxes = Boxes(cloud(daytona_double))
    yield boxes
    daytona_double.faults.clear()
    daytona_double.stuck.clear()
    await boxes.close()
    assert daytona_double.living() == []


async def refused(requested: Any, fault: ProviderFault) -> ProviderError:
    """The error of a request that failed."""
    with pytest.raises(ProviderError) as caught:
        await requested
    assert caught.value.fault is fault, caught.value
    assert KEY not in str(caught.value)
    return caught.value


async def runs_once(at: Boxes, double: Double, spec: BoxSpec) -> None:
    """Check that one sandbox has this name, and that its program was started once."""
    box = await at.provider.get(spec.name)
    assert box is not None
    assert (box.alive, box.runs) == (True, 1)
    assert double.living() == [spec.name]


async def test_lost_reply_creates_no_second_sandbox(at: Boxes, daytona_double: Double) -> None:
    """If the reply to a creation is lost, a search by name finds the sandbox, and no second one is requested."""
    daytona_double.fail("POST", "/api/sandbox$", lost=True)
    spec = at.spec()
    await at.provider.create(spec)
    await runs_once(at, daytona_double, spec)
    assert daytona_double.requested.count(("POST", "/api/sandbox")) == 1


@pytest.mark.parametrize("path", ["session$", "session/[^/]+/exec$", "process/execute$", "bulk-upload$", "labels$"])
async def test_lost_reply_from_inside_starts_nothing_twice(at: Boxes, daytona_double: Double, path: str) -> None:
    """Nothing is started twice, whichever request's reply is lost."""
    daytona_double.fail("PUT" if path == "labels$" else "POST", path, lost=True)
    spec = at.spec(f"echo life >> {WORK}/lives; {WAITS}")
    box = await at.provider.create(spec)
    await runs_once(at, daytona_double, spec)
    result = await at.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives")
    assert result.out == b"life\n"


async def test_creation_that_times_out_is_continued(daytona_double: Double, at: Boxes) -> None:
    """The time-out is raised; a repeated request returns the same sandbox."""
    hasty = cloud(daytona_double, patience=1.0)
    daytona_double.fail("POST", "/api/sandbox$", slow=2.0)
    spec = at.spec()
    try:
        await refused(hasty.create(spec), ProviderFault.TIMED_OUT)
        await at.provider.create(spec)
    finally:
        await hasty.close()
    await runs_once(at, daytona_double, spec)


async def test_throttled_request_waits_as_requested(at: Boxes, daytona_double: Double) -> None:
    """A short wait in the throttler's header is waited for."""
    headers = {"Retry-After-sandbox-create": "1", **THROTTLED}
    daytona_double.fail("POST", "/api/sandbox$", error=ApiError(429, "Rate limit exceeded", headers))
    spec, began = at.spec(), time.monotonic()
    await at.provider.create(spec)
    assert time.monotonic() - began >= 1
    await runs_once(at, daytona_double, spec)


@pytest.mark.parametrize("header", ["Retry-After-sandbox-create", "X-RateLimit-Reset-sandbox-create"])
async def test_long_wait_is_left_to_the_spawner(at: Boxes, daytona_double: Double, header: str) -> None:
    """A long wait is raised at once, with the time."""
    daytona_double.fail(
        "POST", "/api/sandbox$", error=ApiError(429, "Rate limit exceeded", {header: "57", **THROTTLED})
    )
    result = await refused(at.provider.create(at.spec()), ProviderFault.RATE_LIMITED)
    assert result.wait == 57
    assert daytona_double.living() == []


@pytest.mark.parametrize(
    ("status", "message", "fault"),
    [
        (400, QUOTA, ProviderFault.QUOTA),
        (400, "Total disk limit exceeded. Maximum allowed: 30GiB.", ProviderFault.QUOTA),
        (400, "CPU request 900 exceeds maximum allowed per sandbox (4)", ProviderFault.REFUSED),
        (403, "Organization is suspended: Depleted credits", ProviderFault.REFUSED),
        (401, "Invalid credentials", ProviderFault.REFUSED),
        (500, "Internal server error", ProviderFault.TRANSIENT),
    ],
)
async def test_refusal_has_its_fault(
    at: Boxes, daytona_double: Double, status: int, message: str, fault: ProviderFault
) -> None:
    """The error has Daytona's message and the right fault, and nothing is created."""
    daytona_double.fail("POST", "/api/sandbox$", times=99, error=ApiError(status, message))
    result = await refused(at.provider.create(at.spec()), fault)
    assert message.partition("\n")[0] in str(result)
    assert daytona_double.living() == []


async def test_temporary_failure_is_retried(at: Boxes, daytona_double: Double) -> None:
    """A temporary error of the API, or a concurrent change of the sandbox, is retried and not visible to the caller."""
    daytona_double.fail("POST", "/api/sandbox$", times=2, error=ApiError(503, "Service Unavailable"))
    box = await at.make()
    daytona_double.fail("POST", "/stop$", error=ApiError(409, "Sandbox state change in progress"))
    daytona_double.fail("POST", "/stop$", error=ApiError(400, "Sandbox is not started"))
    await at.provider.stop(box.name, 1)
    assert (await at.until(box, lambda found: found is not None)).state is BoxState.STOPPED  # type: ignore[union-attr]
    daytona_double.fail("POST", "/start$", error=ApiError(409, "Sandbox state change in progress"))
    await at.provider.start(box.name)


async def test_sandbox_that_fails_at_once_is_replaced(at: Boxes, daytona_double: Double) -> None:
    """A sandbox that fails before it has run is removed, and another one gets its name."""
    daytona_double.error_reasons += ["no runner took it"]
    spec = at.spec()
    await at.provider.create(spec)
    await runs_once(at, daytona_double, spec)


async def test_failure_of_sandboxes_states_the_reason(at: Boxes, daytona_double: Double) -> None:
    """The error has Daytona's reason, once it has failed often enough."""
    daytona_double.error_reasons += ["no runner took it"] * 9
    result = await refused(at.provider.create(at.spec()), ProviderFault.TRANSIENT)
    assert "no runner took it" in str(result)
    assert daytona_double.living() == []


async def test_sandbox_that_fails_later_is_shown_with_its_reason(at: Boxes, daytona_double: Double) -> None:
    """A sandbox that has run is not replaced, as it may have unpublished events."""
    spec = at.spec()
    await at.provider.create(spec)
    await daytona_double.break_down(spec.name, "the runner is gone")
    for box in (await at.provider.get(spec.name), await at.provider.create(spec)):
        assert box is not None
        assert (box.state, box.alive, box.problem) == (BoxState.FAILED, False, "the runner is gone")
        assert box.end is not None
        assert (box.end.code, box.end.reason) == (None, "the runner is gone")
    await at.provider.stop(spec.name, 1)


async def test_dead_toolbox_does_not_mean_a_dead_sandbox(at: Boxes, daytona_double: Double) -> None:
    """The sandbox whose toolbox has ended is `started` at Daytona; the problem is reported, and it can be stopped."""
    box = await at.make()
    daytona_double.of(box.name).machine.kill_daemon()
    found = await at.until(box, lambda one: one is not None and bool(one.problem))
    assert found is not None
    assert (found.state, found.alive, found.runs) == (BoxState.RUNNING, True, 1)
    assert "toolbox inside does not respond" in found.problem
    result = await refused(at.provider.run(box.name, Command(argv=["true"])), ProviderFault.TRANSIENT)
    assert "502" in str(result)
    await at.provider.stop(box.name, 1)
    ended = await at.provider.get(box.name)
    assert ended is not None
    assert ended.end is not None
    assert (ended.alive, ended.end.code) == (False, None)


async def test_stuck_removal_is_requested_again(at: Boxes, daytona_double: Double) -> None:
    """The removal is requested again when the first request never ends."""
    box = await at.make()
    daytona_double.stuck["destroyed"] = 1
    hasty = cloud(daytona_double, patience=5.0)  # within which the second one must end
    await hasty.remove(box.name)
    await hasty.close()
    assert daytona_double.living() == []


async def test_removal_that_never_ends_is_an_error(at: Boxes, daytona_double: Double) -> None:
    """After three requests an error is raised; the sandbox still uses the quota, and is found by name."""
    box = await at.make()
    daytona_double.stuck["destroyed"] = 99
    hasty = cloud(daytona_double, patience=3.0)  # within which each must be requested
    result = await refused(hasty.remove(box.name), ProviderFault.TIMED_OUT)
    assert "counts against the quota" in str(result)
    assert [method for method, path in daytona_double.requested if path.startswith("/api")].count("DELETE") == 3
    assert [one.state for one in await at.provider.find({HERD: at.herd})] == [BoxState.REMOVING]
    await hasty.close()


async def test_stuck_start_can_be_removed(at: Boxes, daytona_double: Double) -> None:
    """After the time-out the sandbox is found by name and label, and is removed."""
    daytona_double.stuck["started"] = 1
    hasty, spec = cloud(daytona_double, patience=3.0), at.spec()  # within which it must be requested
    await refused(hasty.create(spec), ProviderFault.TIMED_OUT)
    await hasty.close()
    found = [(one.name, one.state) for one in await at.provider.find({HERD: at.herd})]
    assert found == [(spec.name, BoxState.CREATING)]
    await at.provider.remove(spec.name)
    assert daytona_double.living() == []


async def test_externally_stopped_or_removed_sandbox_is_seen(at: Boxes, daytona_double: Double) -> None:
    """The exit status of its program is unknown, which is stated."""
    box = await at.make()
    held = daytona_double.of(box.name)
    await daytona_double.change(held, "stopped")
    found = await at.until(box, lambda one: one is not None and one.state is BoxState.STOPPED)
    assert found is not None
    assert found.end is not None
    assert (found.alive, found.end.code, found.end.reason) == (False, None, "the sandbox was stopped at Daytona")
    await at.until(box, lambda _: held.state == "stopped")
    await daytona_double.change(held, "destroyed")
    await at.until(box, lambda one: one is None)


async def test_program_killed_without_a_report_has_ended(at: Boxes) -> None:
    """The end of a program is known although no process is left to report it."""
    box = await at.make()
    kill = "kill -KILL $(cut -d' ' -f1 1.pid) $(cat 1.child)"
    await at.sh(box, f"cd /sandherd/run; until [ -e 1.child ]; do sleep 0.05; done; {kill}")
    ended = await at.until(box, lambda one: one is not None and not one.alive)
    assert ended is not None
    assert ended.end is not None
    assert (ended.end.code, ended.end.reason) == (None, "it ended without an exit status")


async def test_class_without_pause_refuses(at: Boxes, daytona_double: Double) -> None:
    """The error has Daytona's message."""
    daytona_double.can_pause = False
    box = await at.make()
    result = await refused(at.provider.pause(box.name), ProviderFault.REFUSED)
    assert "not supported" in str(result)


async def test_paused_sandbox_is_sent_no_request(at: Boxes) -> None:
    """A request to a paused sandbox is refused at once, and the sandbox continues afterwards."""
    box = await at.make()
    await at.provider.pause(box.name)
    await refused(at.provider.run(box.name, Command(argv=["true"])), ProviderFault.REFUSED)
    await at.provider.resume(box.name)
    assert (await at.sh(box, "echo on")).out == b"on\n"


async def test_without_socket_io_the_sdk_polls() -> None:
    """Without Socket.IO the SDK polls every second."""
    async with Double(has_events=False) as double:
        at = Boxes(cloud(double))
        box = await at.make()
        await at.provider.stop(box.name, 1)
        await at.provider.start(box.name)
        await at.close()
        assert double.living() == []


async def test_inactive_snapshot_is_refused_by_name(at: Boxes, daytona_double: Double) -> None:
    """The error names the inactive snapshot, and no other snapshot is used in its place."""
    for state in ("inactive", "error", "building"):
        daytona_double.snapshots["sandherd-old"] = state
        result = await refused(at.make(image="sandherd-old"), ProviderFault.REFUSED)
        assert f"snapshot sandherd-old is {state}" in str(result)
    assert ("POST", "/api/sandbox") not in daytona_double.requested


async def test_image_is_built_with_its_own_resources(at: Boxes, daytona_double: Double) -> None:
    """Without a snapshot of that name the image is built with the resources of the settings."""
    box = await at.make(image=IMAGE)
    shown = daytona_double.of(box.name).shown
    assert (shown["buildInfo"]["dockerfileContent"], shown["memory"]) == (f"FROM {IMAGE}\n", 1)


async def test_configured_options_are_requested(daytona_double: Double, at: Boxes) -> None:
    """Intervals, network, user and resources are sent; name and label are Sandherd's, and Daytona's label stays."""
    kind: dict[str, Any] = {"auto_archive": 60, "auto_delete": 120, "cpu": 2, "disk_gb": 5, "user": "agent"}
    kind |= {"allowed_networks": {"10.1.0.0/16", "10.0.0.0/16"}, "volumes": {"vol-1:/data:part"}}
    kind |= {"snapshot": None, "image": IMAGE}
    requested = cloud(daytona_double, **kind)
    spec = at.spec()
    await requested.create(spec)
    await requested.mark_quarantined(spec.name)
    await requested.unmark_quarantined(spec.name)
    await requested.close()
    shown = daytona_double.of(spec.name).shown
    assert (shown["autoStopInterval"], shown["autoArchiveInterval"], shown["autoDeleteInterval"]) == (0, 60, 120)
    assert (shown["cpu"], shown["disk"], shown["user"]) == (2, 5, "agent")
    assert shown["networkAllowList"] == "10.0.0.0/16,10.1.0.0/16"
    assert shown["volumes"] == [{"volumeId": "vol-1", "mountPath": "/data", "subpath": "part"}]
    assert shown["env"] == {"GIVEN": "a value"}
    assert {"code-toolbox-language", "sandherd.dev/unit", HERD} <= shown["labels"].keys()
    assert shown["labels"]["sandherd.dev/unit"] == shown["name"] == spec.name


async def test_ephemeral_sandbox_stays_until_it_is_removed(daytona_double: Double, at: Boxes) -> None:
    """An ephemeral sandbox that stops would be deleted with its unpublished events."""
    ephemeral, spec = cloud(daytona_double, ephemeral=True, block_network=True), at.spec("exit 3")
    box = await ephemeral.create(spec)
    await at.until(box, lambda one: one is not None and one.end is not None)  # by itself, before the request to
    await ephemeral.stop(spec.name, 1)
    ended = await ephemeral.get(spec.name)
    shown = daytona_double.of(spec.name).shown
    assert ended is not None
    assert ended.end is not None
    assert (ended.end.code, shown["autoDeleteInterval"], shown["networkBlockAll"]) == (3, 0, True)
    await ephemeral.close()


def settings(double: Double, **values: Any) -> Settings:
    given = {"daytona_api_key": KEY, "daytona_api_url": double.api_url, "daytona_snapshot": SNAPSHOT, **values}
    return Settings(**given)


@pytest.mark.parametrize(
    ("values", "expected_text"),
    [
        ({"daytona_api_key": None}, "DAYTONA_API_KEY"),
        ({"daytona_api_key": "dtn_wrong"}, "Invalid credentials"),
        ({"daytona_snapshot": None}, "SANDHERD_DAYTONA_SNAPSHOT"),
        ({"daytona_snapshot": "sandherd-old"}, "snapshot sandherd-old is inactive"),
        ({"daytona_snapshot": "sandherd-none"}, "no snapshot sandherd-none"),
    ],
)
async def test_runtime_with_unusable_settings_is_not_opened(
    daytona_double: Double, values: dict[str, Any], expected_text: str
) -> None:
    """The error names the setting; no other value is used in its place."""
    with pytest.raises(RuntimeFailedError) as caught:
        await open_runtime(settings(daytona_double, **values), "herd")
    assert expected_text in str(caught.value)
    assert "dtn_" not in str(caught.value)


async def test_several_pages_of_sandboxes_are_all_found(daytona_double: Double, at: Boxes) -> None:
    """All sandboxes are found, even if they are more than one page."""
    made = await asyncio.gather(*(at.make("exit 0") for _ in range(3)))
    daytona_double.page = 2
    provider: DaytonaProvider = at.provider  # type: ignore[assignment]  # it is that one here
    assert {box.name for box in await provider.find({HERD: at.herd})} == {box.name for box in made}
