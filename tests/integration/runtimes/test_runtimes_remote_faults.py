"""Failures of the Runtime API: each leads to its fault, and leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandherd.contracts.specs import SandboxLimits
from sandherd.settings import Settings
from spawner.runtimes.boxes.box_files import HERD, ROOT, STATE
from spawner.runtimes.boxes.provider import Box, BoxSpec, BoxState, Command, File, ProviderError, ProviderFault
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.remote.factory import open_remote as open_runtime
from tests.doubles.remote.double import IMAGE, KEY, ApiError, Double
from tests.doubles.remote.provider import PATIENCE as RETRIES
from tests.doubles.remote.provider import remote
from tests.integration.runtimes.conftest import WAITS, Boxes
from tests.patience import PATIENCE

WORK = f"{ROOT}/work"


@pytest.fixture
async def at(remote_double: Double) -> AsyncIterator[Boxes]:
    """Boxes at the double; a box that is left at the end is an orphan."""
    boxes = Boxes(remote(remote_double))
    yield boxes
    remote_double.faults.clear()
    await boxes.close()
    assert remote_double.living() == []


async def refused(requested: Any, fault: ProviderFault, double: Double) -> ProviderError:
    """The error of a request that failed; it contains no key."""
    with pytest.raises(ProviderError) as caught:
        await requested
    assert caught.value.fault is fault, caught.value
    assert not any(key in str(caught.value) for key in (KEY, *double.keys))
    return caught.value


async def runs_once(at: Boxes, double: Double, spec: BoxSpec) -> None:
    """Check that one runtime has this name, and that its program was started once."""
    box = await at.provider.get(spec.name)
    assert box is not None
    assert (box.alive, box.runs) == (True, 1)
    assert double.living() == [f"{at.herd}-{spec.name}"]


def starts(double: Double) -> int:
    return double.requested.count(("POST", "/start"))


async def test_lost_reply_creates_no_second_runtime(at: Boxes, remote_double: Double) -> None:
    """If the reply to a start is lost, a search by session finds the runtime, and no second one is requested."""
    remote_double.fail("POST", "^/start$", lost=True)
    spec = at.spec()
    await at.provider.create(spec)
    await runs_once(at, remote_double, spec)
    assert starts(remote_double) == 1


@pytest.mark.parametrize("path", ["/api/file/upload", "/api/bash/execute_bash_command"])
@pytest.mark.parametrize("lost", [False, True])
async def test_failing_agent_server_is_retried(at: Boxes, remote_double: Double, path: str, lost: bool) -> None:
    """With lost replies or a proxy's 503, the program is still started only once."""
    how: dict[str, Any] = {"lost": True} if lost else {"error": ApiError(503, "unavailable", "no server is available")}
    remote_double.fail("POST", path, times=3, **how)
    spec = at.spec(f"echo life >> {WORK}/lives; {WAITS}")
    box = await at.provider.create(spec)
    await runs_once(at, remote_double, spec)
    assert (await at.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done; cat {WORK}/lives")).out == b"life\n"


async def test_temporary_failure_is_retried(at: Boxes, remote_double: Double) -> None:
    """Two replies of 5xx and one of 429 with a wait are retried."""
    remote_double.fail("POST", "^/start$", error=ApiError(500, "sandbox_creation_failed", "etcdserver: leader changed"))
    remote_double.fail("GET", "^/sessions/", times=2, error=ApiError(503, "unavailable", "try again"))
    throttled = ApiError(429, "too_many_requests", "slow down", {"Retry-After": "0.2"})
    remote_double.fail("POST", "^/start$", error=throttled)
    spec = at.spec()
    await at.provider.create(spec)
    await runs_once(at, remote_double, spec)


async def test_long_wait_is_left_to_the_caller(at: Boxes, remote_double: Double) -> None:
    """A wait of a minute is raised at once, with the time."""
    throttled = ApiError(429, "too_many_requests", "slow down", {"Retry-After": "60"})
    remote_double.fail("POST", "^/start$", times=100, error=throttled)
    error = await refused(at.make(), ProviderFault.RATE_LIMITED, remote_double)
    assert error.wait == 60
    assert (starts(remote_double), remote_double.living()) == (1, [])


async def test_lasting_failure_is_given_up(at: Boxes, remote_double: Double) -> None:
    """The number of attempts is limited."""
    remote_double.fail("POST", "^/start$", times=100, error=ApiError(503, "unavailable", "maintenance"))
    error = await refused(at.make(), ProviderFault.TRANSIENT, remote_double)
    assert "maintenance" in str(error)
    assert starts(remote_double) == 5


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_key_is_reported_and_not_repeated(at: Boxes, remote_double: Double, status: int) -> None:
    """The error does not have the key, even if the reply has it."""
    remote_double.fail("POST", "^/start$", times=100, error=ApiError(status, "denied", f"bad X-API-Key: {KEY}"))
    error = await refused(at.make(), ProviderFault.REFUSED, remote_double)
    assert "SANDBOX_API_KEY" in str(error)
    assert starts(remote_double) == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (402, "add credits to go on"),
        (400, "Runtime limit reached for this account"),
        (500, 'pods "runtime-1" is forbidden: exceeded quota: compute, requested: limits.memory=4Gi'),
    ],
)
async def test_missing_capacity_is_distinguished_from_a_fault(
    at: Boxes, remote_double: Double, status: int, text: str
) -> None:
    """The text of the reply decides; the request is not repeated at once."""
    remote_double.fail("POST", "^/start$", times=100, error=ApiError(status, "failed", text))
    await refused(at.make(), ProviderFault.QUOTA, remote_double)
    assert starts(remote_double) == 1


async def test_excessive_memory_is_refused_before_any_request(at: Boxes, remote_double: Double) -> None:
    """More than eight steps of 4 GB are refused; a smaller limit uses the smallest sufficient step."""
    too_much = at.make(limits=SandboxLimits(memory_mb=33_000))
    assert "32 GB" in str(await refused(too_much, ProviderFault.REFUSED, remote_double))
    assert starts(remote_double) == 0
    spec = at.spec(limits=SandboxLimits(memory_mb=4097))
    await at.provider.create(spec)
    assert remote_double.of(spec.name).requested["resource_factor"] == 2


async def test_crashing_pod_is_stopped(at: Boxes, remote_double: Double) -> None:
    """The error has the reason; the next attempt creates a new pod."""
    remote_double.crashing.append("OOMKilled")
    spec = at.spec()
    error = await refused(at.provider.create(spec), ProviderFault.TRANSIENT, remote_double)
    assert "crashloopbackoff: OOMKilled" in str(error)
    assert remote_double.living() == []
    await at.provider.create(spec)
    await runs_once(at, remote_double, spec)


async def test_runtime_that_never_starts_is_stopped(remote_double: Double) -> None:
    """The error after its time has the runtime's last state."""
    boxes = Boxes(remote(remote_double, init_timeout=3.0))  # within which it must be read
    remote_double.stuck = 1
    error = await refused(boxes.make(), ProviderFault.TIMED_OUT, remote_double)
    assert "it is starting, its pod pending" in str(error)
    assert remote_double.living() == []
    await boxes.close()


async def test_image_that_cannot_be_pulled_is_refused(at: Boxes, remote_double: Double) -> None:
    """A pod would wait forever for an image that the Runtime API has reported as existing: the spawner does not."""
    remote_double.unpullable = 1
    error = await refused(at.make(), ProviderFault.REFUSED, remote_double)
    assert "can't be pulled" in str(error)
    assert remote_double.living() == []


async def test_missing_image_route_is_ignored(at: Boxes, remote_double: Double) -> None:
    """A Runtime API without the route for images can be used."""
    remote_double.fail("GET", "^/image_exists$", error=ApiError(404, "not_found", "no such route"))
    spec = at.spec()
    await at.provider.create(spec)
    await runs_once(at, remote_double, spec)


@pytest.mark.parametrize("remembers", [False, True])
async def test_lost_runtime_has_ended(at: Boxes, remote_double: Double, remembers: bool) -> None:
    """A runtime that was stopped externally has ended, and that is a change, whether its session is known or not."""
    remote_double.remembers_stopped = remembers
    box = await at.make()
    news = at.provider.changes()
    assert await anext(news) == box.name
    await remote_double.stop(remote_double.of(box.name))
    async with asyncio.timeout(PATIENCE):
        assert await anext(news) == box.name
    assert await at.provider.get(box.name) is None
    assert await at.provider.find({HERD: at.herd}) == []
    await refused(at.provider.run(box.name, Command(argv=["true"])), ProviderFault.NOT_FOUND, remote_double)
    for again in (at.provider.stop(box.name, 1), at.provider.mark_quarantined(box.name), at.provider.remove(box.name)):
        await again


@pytest.mark.parametrize("wipe", [False, True])
@pytest.mark.parametrize(("reason", "memory"), [("OOMKilled", True), ("Evicted: node is low on disk", False)])
async def test_recreated_pod_has_lost_its_program(
    at: Boxes, remote_double: Double, wipe: bool, reason: str, memory: bool
) -> None:
    """A running pod without its program is reported with the reason, memory apart, with its files or without."""
    box = await at.make()
    await remote_double.restart(remote_double.of(box.name), reason, wipe=wipe)
    found = await _seen(at, box)
    assert found.end is not None
    assert (found.alive, found.runs, found.end.out_of_memory) == (False, 1, memory)
    assert reason in found.end.reason
    if wipe:
        await refused(at.provider.start(box.name), ProviderFault.NOT_FOUND, remote_double)
    else:
        await at.provider.start(box.name)
        assert (await _seen(at, box)).alive


async def test_oom_kill_is_reported(at: Boxes, remote_double: Double) -> None:
    """The runtime itself survives; its counter distinguishes this kill from others."""
    if remote_double.groups.memory is None:
        pytest.fail("no memory group can be made here, so nothing can be held in its limit")
    remote_double.step_mib = 96
    box = await at.make("exec python3 -c \"b = b'x' * (1 << 30)\"")
    ended = await at.until(box, lambda found: found is not None and found.end is not None)
    assert ended is not None
    assert ended.end is not None
    assert (ended.end.out_of_memory, ended.end.code) == (True, 137)
    killed = await at.make("kill -9 $$")
    ended = await at.until(killed, lambda found: found is not None and found.end is not None)
    assert ended is not None
    assert ended.end is not None
    assert (ended.end.out_of_memory, ended.end.code) == (False, 137)


async def test_runtime_paused_by_its_provider_restarts_from_its_files(at: Boxes, remote_double: Double) -> None:
    """The paused runtime's processes have ended; it is resumed with another key and started again."""
    box = await at.make(f"cat {STATE}/more >> {WORK}/lives; echo life >> {WORK}/lives; {WAITS}")
    await at.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await remote_double.pause(remote_double.of(box.name))
    found = await _seen(at, box)
    assert found.end is not None
    assert (found.alive, found.state, found.quarantined) == (False, BoxState.STOPPED, False)
    assert "paused" in found.end.reason
    await at.provider.start(box.name)
    await at.provider.write_files(box.name, [File(f"{STATE}/late", b"x")])
    result = await at.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 2 ]; do sleep 0.05; done; cat {WORK}/lives")
    assert result.out == b"life\nlife\n"
    assert len(remote_double.keys) == 2


async def test_quarantined_runtime_is_paused(remote_double: Double) -> None:
    """Every replica sees the paused runtime as quarantined; once restored, it has its files."""
    boxes = Boxes(remote(remote_double, keep_alive=False))
    box = await boxes.make(f"echo unsaid > {WORK}/unsaid; {WAITS}")
    await boxes.sh(box, f"until [ -s {WORK}/unsaid ]; do sleep 0.05; done")
    await boxes.provider.stop(box.name, 1)
    for _ in range(2):
        await boxes.provider.mark_quarantined(box.name)
    assert remote_double.of(box.name).status == "paused"
    another = remote(remote_double, keep_alive=False)
    assert [found.quarantined for found in await another.find({HERD: boxes.herd})] == [True]
    await another.unmark_quarantined(box.name)
    await another.close()
    assert (await _seen(boxes, box)).quarantined is False
    assert await boxes.provider.read(box.name, f"{WORK}/unsaid", 100) == b"unsaid\n"
    await boxes.close()


async def test_hanging_agent_server_hides_no_other_sandbox(at: Boxes, remote_double: Double) -> None:
    """Lists and requests by name state that the sandbox does not respond; others are not affected."""
    mute, well = await at.make(), await at.make()
    pod = remote_double.of(mute.name)
    remote_double.fail("POST", f"^/sandbox/{pod.id}/", times=10_000, error=ApiError(502, "bad_gateway", "no answer"))
    alone = await _seen(at, mute)
    assert (alone.alive, alone.runs, alone.problem) == (True, 1, "its agent server does not respond")
    found = {box.name: box for box in await at.provider.find({HERD: at.herd})}
    assert found.keys() == {mute.name, well.name}
    assert (found[mute.name].alive, found[mute.name].problem) == (True, "its agent server does not respond")
    assert found[well.name].problem == ""


async def test_unresponsive_sandbox_is_stopped_in_the_end(remote_double: Double) -> None:
    """The program can't be stopped by request, so its runtime is stopped, and costs nothing more."""
    boxes, hasty = Boxes(remote(remote_double)), remote(remote_double, init_timeout=5.0)
    box = await boxes.make()
    remote_double.fail("POST", "^/sandbox/", times=10_000, error=ApiError(502, "bad_gateway", "no answer"))
    await refused(hasty.stop(box.name, 0), ProviderFault.TRANSIENT, remote_double)
    async with asyncio.timeout(PATIENCE):
        while remote_double.living():
            try:
                await hasty.stop(box.name, 0)
            except ProviderError as error:
                assert error.fault is ProviderFault.TRANSIENT  # noqa: PT017  # once it is none, the loop ends
    assert await boxes.provider.get(box.name) is None
    await hasty.close()
    await boxes.close()


async def test_abandoned_creation_is_found_and_removed(remote_double: Double) -> None:
    """A restarted spawner finds a runtime whose creator ended before anything was in it, by its herd."""
    first, herd = Boxes(remote(remote_double)), "0123456789abcdef"
    remote_double.stuck = 1
    making = asyncio.create_task(first.make(labels={HERD: herd}))
    async with asyncio.timeout(PATIENCE):
        while not remote_double.living():
            await asyncio.sleep(0.02)  # the double sends no notification
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    another = remote(remote_double, herd=herd)
    assert await another.find({HERD: "another"}) == []
    (found,) = await another.find({HERD: herd})
    assert (found.state, found.runs, found.labels) == (BoxState.CREATING, 0, {HERD: herd})
    await another.remove(found.name)
    assert remote_double.living() == []
    await another.close()
    await first.close()


async def test_foreign_runtimes_of_the_account_are_ignored(at: Boxes, remote_double: Double) -> None:
    """Runtimes of OpenHands itself or of another herd are left alone."""
    requested = {"image": IMAGE, "command": "sleep 600", "session_id": "conversation-1"}
    stranger = await remote_double.start(requested)
    box = await at.make()
    assert [found.name for found in await at.provider.find({})] == [box.name]
    await at.provider.remove("conversation-1")
    assert stranger.id in remote_double.pods
    await remote_double.stop(stranger)


async def test_reply_of_another_form_is_a_fault_and_not_repeated(at: Boxes, remote_double: Double) -> None:
    """The page of a proxy and another API's reply are faults."""
    box = await at.make()
    pod = remote_double.of(box.name)
    pod.restarts = {"session_api_key": pod.key}  # type: ignore[assignment]  # what is none is what is tried
    error = await refused(at.provider.get(box.name), ProviderFault.TRANSIENT, remote_double)
    assert "restart_reasons" in str(error)
    pod.restarts = []


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"remote_api_key": None}, "SANDBOX_API_KEY"),
        ({"remote_api_url": None}, "SANDBOX_REMOTE_RUNTIME_API_URL"),
        ({"sandbox_image": None}, "SANDBOX_IMAGE"),
        ({"remote_keep_alive": False}, "SANDBOX_PAUSE_CLOSED_RUNTIMES"),
        ({"remote_api_key": "ah-another-key-than-that"}, "401"),
        ({"remote_api_url": "http://127.0.0.1:9"}, "the server can't be reached"),
    ],
)
async def test_invalid_settings_are_refused_at_the_start(
    remote_double: Double, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected_text: str
) -> None:
    """The error names the setting, and no key."""
    monkeypatch.setattr("spawner.runtimes.remote.factory.RETRIES", RETRIES)
    usual = {"remote_api_url": remote_double.url, "remote_api_key": KEY, "sandbox_image": IMAGE, "runtime": "remote"}
    with pytest.raises(RuntimeFailedError, match=expected_text) as caught:
        await open_runtime(Settings(**{**usual, **given}), "0123456789abcdef")
    assert KEY not in str(caught.value)
    assert "another-key" not in str(caught.value)


async def _seen(at: Boxes, box: Box) -> Box:
    found = await at.provider.get(box.name)
    assert found is not None
    return found
