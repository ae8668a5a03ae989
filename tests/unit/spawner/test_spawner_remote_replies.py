"""Replies of the Runtime API and box.sh, read as a sandbox's state or as a fault. Pure."""

from typing import Any

import pytest

from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxState, Command, ProviderError, ProviderFault
from spawner.runtimes.remote import replies, scripts
from spawner.runtimes.remote.faults import fault_of, mask_keys, refusal
from spawner.runtimes.remote.replies import RemoteRuntimeState
from spawner.runtimes.remote.scripts import CommandOutcome, ProgramState

SESSION = "0123456789abcdef-sbx-one"
LIVES = ProgramState(runs=1, supervised=True)


def runtime(**fields: Any) -> RemoteRuntimeState:
    given = {"runtime_id": "r1", "session_id": SESSION, "status": "running", "pod_status": "ready"} | fields
    return RemoteRuntimeState.model_validate(given)


@pytest.mark.parametrize(
    ("fields", "look", "state", "alive", "memory"),
    [
        ({}, LIVES, BoxState.RUNNING, True, None),
        ({}, ProgramState(runs=1, supervised=True, frozen=True), BoxState.PAUSED, True, None),
        ({}, ProgramState(), BoxState.CREATING, True, None),
        ({"status": "starting", "pod_status": "pending"}, None, BoxState.CREATING, True, None),
        ({}, ProgramState(runs=1), BoxState.STOPPED, False, False),
        ({"restart_count": 1, "restart_reasons": ["OOMKilled"]}, LIVES, BoxState.RUNNING, True, None),
        ({"restart_count": 1, "restart_reasons": ["OOMKilled"]}, ProgramState(runs=1), BoxState.STOPPED, False, True),
        ({"restart_count": 1, "restart_reasons": ["Evicted"]}, ProgramState(), BoxState.STOPPED, False, False),
        ({"status": "paused", "pod_status": "not found"}, None, BoxState.STOPPED, False, False),
        ({"status": "error", "pod_status": None}, None, BoxState.FAILED, False, False),
        ({"pod_status": "CrashLoopBackOff", "restart_reasons": ["OOMKilled"]}, None, BoxState.FAILED, False, True),
    ],
)
def test_runtime_is_read_as_a_sandbox(
    fields: dict[str, Any], look: ProgramState | None, state: BoxState, alive: bool, memory: bool | None
) -> None:
    """The API's state of its pod and the files in it are combined."""
    box = replies.box(runtime(**fields), look, paused_is_quarantined=False)
    assert (box.name, box.labels, box.state, box.alive) == ("sbx-one", {HERD: "0123456789abcdef"}, state, alive)
    assert (None if box.end is None else box.end.out_of_memory) is memory
    assert box.end is None or (box.runs >= 1 and box.end.reason)


HOSTS = {"https://work-1-x.host/": 12000, "https://work-2-x.host": 12001}
BESIDE = {12000: "https://work-1-x.host", 12001: "https://work-2-x.host"}
BEHIND = {12000: "https://host/r1/work-1", 12001: "https://host/r1/work-2"}


@pytest.mark.parametrize(
    ("fields", "ports"),
    [
        ({"work_hosts": HOSTS}, BESIDE),
        ({"work_hosts": {}, "url": "https://x.host"}, {}),
        ({"work_hosts": {"https://key@host": 12000, "ftp://host": 12001, "https://host": 80, "https://h?k=1": 9}}, {}),
        ({"url": "https://x.host"}, BESIDE),
        ({"url": "https://host/r1", "work_hosts": None}, BEHIND),
        ({}, {}),
    ],
)
def test_ports_of_a_runtime_are_read_with_defaults(fields: dict[str, Any], ports: dict[int, str]) -> None:
    """Without ports, those of OpenHands' own programs apply; no URL may hold a secret."""
    assert runtime(**fields).ports == ports


def test_repr_of_a_runtime_contains_no_key() -> None:
    """The key of a session is not printed."""
    assert "hush" not in repr(runtime(session_api_key="hush-hush"))


@pytest.mark.parametrize(("memory", "size"), [(128, 1), (4096, 1), (4097, 2), (8193, 4), (32_768, 8), (32_769, None)])
def test_memory_is_requested_in_steps(memory: int, size: int | None) -> None:
    """The smallest sufficient size is requested; more than the largest is refused."""
    limits = SandboxLimits(memory_mb=memory)
    if size is not None:
        assert replies.resource_factor(limits, 1, 4) == size
        assert replies.resource_factor(limits, 4, 4) == max(4, size)
        return
    with pytest.raises(ProviderError) as caught:
        replies.resource_factor(limits, 1, 4)
    assert caught.value.fault is ProviderFault.REFUSED


@pytest.mark.parametrize("session", ["conversation-1", "sbx-one", "", "agent-server-0e7f", "-"])
def test_session_with_another_name_is_no_sandbox(session: str) -> None:
    """OpenHands names its own sessions otherwise."""
    assert replies.name_of(session) is None
    assert replies.name_of(SESSION) == ("0123456789abcdef", "sbx-one")
    assert replies.session("0123456789abcdef", "sbx-one") == SESSION
    with pytest.raises(ProviderError, match="too long"):
        replies.session("0123456789abcdef", "sbx-" + "x" * 40)


@pytest.mark.parametrize(
    ("status", "text", "fault"),
    [
        (400, "session_id is required", ProviderFault.REFUSED),
        (401, "Invalid API key; account limit reached", ProviderFault.REFUSED),
        (402, "", ProviderFault.QUOTA),
        (403, "suspended", ProviderFault.REFUSED),
        (403, "exceeded quota: pods", ProviderFault.QUOTA),
        (404, "Runtime not found", ProviderFault.NOT_FOUND),
        (409, "being started", ProviderFault.TRANSIENT),
        (429, "rate limit exceeded", ProviderFault.RATE_LIMITED),
        (500, "no capacity left", ProviderFault.QUOTA),
        (500, "", ProviderFault.TRANSIENT),
        (503, "unavailable", ProviderFault.TRANSIENT),
        (504, "", ProviderFault.TRANSIENT),
    ],
)
def test_error_is_one_of_a_closed_set(status: int, text: str, fault: ProviderFault) -> None:
    """The status decides; the text only where it names a quota."""
    assert fault_of(status, text) is fault


@pytest.mark.parametrize(("header", "wait"), [("2.5", 2.5), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after_is_read_in_seconds(header: str, wait: float | None) -> None:
    """A date is not read."""
    assert refusal("asking", 429, "", {"Retry-After": header}).wait == wait
    assert refusal("asking", 503, "", {"Retry-After": header}).wait is None


def test_key_in_a_reply_is_redacted() -> None:
    """A key is redacted in each form of a reply."""
    for text in ("X-API-Key: ah-0123456789", '{"session_api_key": "ah-0123456789"}', "api_key=ah-0123456789"):
        assert "ah-0123456789" not in mask_keys(text)


def test_output_of_a_command_is_limited() -> None:
    """Standard output comes first; omitted output and a timeout are stated."""
    command = Command(argv=["true"], seconds=5, max_output=4)
    outcome = CommandOutcome.read("0 6\nYWJjZA==\nZWY=\n")
    assert (outcome.out, outcome.err) == (b"abcd", b"ef")
    result = outcome.result(command, 1)
    assert (result.code, result.out, result.err, result.cut) == (0, b"abcd", b"", True)
    assert CommandOutcome.read("124 0\n\n\n").result(command, 1).code == 124
    assert CommandOutcome.read("124 0\n\n\n").result(command, 6).timed_out
    assert CommandOutcome.read("none 0\n\n\n").result(command, 1).timed_out


@pytest.mark.parametrize(
    "text", ["", "rubbish", "0", "x 1", "0 x", "0 1 2", "0 4\nabc\n", "0 4\n\u00e9\n", "9" * 9999 + " 1"]
)
def test_invalid_result_of_a_command_is_a_provider_fault(text: str) -> None:
    """The sandbox's agent may have written it."""
    with pytest.raises(ProviderError) as caught:
        CommandOutcome.read(text)
    assert caught.value.fault is ProviderFault.REFUSED


def test_state_of_a_program_is_read_in_any_order() -> None:
    """The last output counts for a failed program."""
    look = ProgramState.read(
        'supervised\nmade 1700000000\nruns 2\nend 137 memory\nlabels {"a": "b"}\naside\noutput the last words\n'
    )
    assert (look.runs, look.supervised, look.aside, look.frozen, look.labels) == (2, True, True, False, {"a": "b"})
    assert look.end is not None
    assert (look.end.code, look.end.out_of_memory, look.end.reason) == (137, True, "the last words")
    assert ProgramState.read("") == ProgramState()


def test_arguments_of_a_command_are_quoted_for_the_shell() -> None:
    """Quotes, spaces and equals signs are unchanged."""
    line = scripts.run_command(Command(argv=["a=b", "it's $(id)"], environment={"A": "'x y'"}), "/f")
    assert "'A='\"'\"'x y'\"'\"''" in line
    assert "'it'\"'\"'s $(id)'" in line
    assert """'exec "$@"' sh a=b""" in line
