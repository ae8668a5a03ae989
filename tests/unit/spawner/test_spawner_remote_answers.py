"""What the Runtime API and box.sh say, read as a box; what goes wrong there, read as a fault. All pure."""

from typing import Any

import pytest

from sandherd.contracts.specs import Limits
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import BoxState, Command, ProviderError, ProviderFault
from spawner.runtimes.remote import answers, scripts
from spawner.runtimes.remote.answers import Runtime
from spawner.runtimes.remote.faults import fault_of, refusal, without_keys
from spawner.runtimes.remote.scripts import Look, Outcome

SESSION = "0123456789abcdef-sbx-one"
LIVES = Look(runs=1, kept=True)


def runtime(**said: Any) -> Runtime:
    given = {"runtime_id": "r1", "session_id": SESSION, "status": "running", "pod_status": "ready"} | said
    return Runtime.model_validate(given)


@pytest.mark.parametrize(
    ("said", "look", "state", "alive", "memory"),
    [
        ({}, LIVES, BoxState.RUNNING, True, None),
        ({}, Look(runs=1, kept=True, frozen=True), BoxState.PAUSED, True, None),
        ({}, Look(), BoxState.CREATING, True, None),
        ({"status": "starting", "pod_status": "pending"}, None, BoxState.CREATING, True, None),
        ({}, Look(runs=1), BoxState.STOPPED, False, False),
        ({"restart_count": 1, "restart_reasons": ["OOMKilled"]}, LIVES, BoxState.RUNNING, True, None),
        ({"restart_count": 1, "restart_reasons": ["OOMKilled"]}, Look(runs=1), BoxState.STOPPED, False, True),
        ({"restart_count": 1, "restart_reasons": ["Evicted"]}, Look(), BoxState.STOPPED, False, False),
        ({"status": "paused", "pod_status": "not found"}, None, BoxState.STOPPED, False, False),
        ({"status": "error", "pod_status": None}, None, BoxState.FAILED, False, False),
        ({"pod_status": "CrashLoopBackOff", "restart_reasons": ["OOMKilled"]}, None, BoxState.FAILED, False, True),
    ],
)
def test_a_runtime_is_read_as_a_box(
    said: dict[str, Any], look: Look | None, state: BoxState, alive: bool, memory: bool | None
) -> None:
    """By what the API says of its pod, and by what is written in it."""
    box = answers.box(runtime(**said), look, paused_is_aside=False)
    assert (box.name, box.labels, box.state, box.alive) == ("sbx-one", {HERD: "0123456789abcdef"}, state, alive)
    assert (None if box.end is None else box.end.out_of_memory) is memory
    assert box.end is None or (box.runs >= 1 and box.end.reason)


HOSTS = {"https://work-1-x.host/": 12000, "https://work-2-x.host": 12001}
BESIDE = {12000: "https://work-1-x.host", 12001: "https://work-2-x.host"}
BEHIND = {12000: "https://host/r1/work-1", 12001: "https://host/r1/work-2"}


@pytest.mark.parametrize(
    ("said", "ports"),
    [
        ({"work_hosts": HOSTS}, BESIDE),
        ({"work_hosts": {}, "url": "https://x.host"}, {}),
        ({"work_hosts": {"https://key@host": 12000, "ftp://host": 12001, "https://host": 80, "https://h?k=1": 9}}, {}),
        ({"url": "https://x.host"}, BESIDE),
        ({"url": "https://host/r1", "work_hosts": None}, BEHIND),
        ({}, {}),
    ],
)
def test_the_ports_of_a_runtime_are_those_that_are_told(said: dict[str, Any], ports: dict[int, str]) -> None:
    """Where nothing is said of them, those that OpenHands' own programs count on; no URL that could hold a secret."""
    assert runtime(**said).ports == ports


def test_no_key_is_in_what_is_shown_of_a_runtime() -> None:
    """Whoever prints one prints no key."""
    assert "hush" not in repr(runtime(session_api_key="hush-hush"))


@pytest.mark.parametrize(("memory", "size"), [(128, 1), (4096, 1), (4097, 2), (8193, 4), (32_768, 8), (32_769, None)])
def test_memory_is_asked_for_in_steps(memory: int, size: int | None) -> None:
    """The smallest that will do; more than the largest is refused."""
    limits = Limits(memory_mb=memory)
    if size is not None:
        assert answers.factor(limits, 1, 4) == size
        assert answers.factor(limits, 4, 4) == max(4, size)
        return
    with pytest.raises(ProviderError) as caught:
        answers.factor(limits, 1, 4)
    assert caught.value.fault is ProviderFault.REFUSED


@pytest.mark.parametrize("session", ["conversation-1", "sbx-one", "", "agent-server-0e7f", "-"])
def test_a_session_of_somebody_else_is_no_box(session: str) -> None:
    """OpenHands names its own otherwise."""
    assert answers.name_of(session) is None
    assert answers.name_of(SESSION) == ("0123456789abcdef", "sbx-one")
    assert answers.session("0123456789abcdef", "sbx-one") == SESSION
    with pytest.raises(ProviderError, match="too long"):
        answers.session("0123456789abcdef", "sbx-" + "x" * 40)


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
def test_an_error_is_one_of_a_closed_set(status: int, text: str, fault: ProviderFault) -> None:
    """By its status; by its text only where that tells a quota."""
    assert fault_of(status, text) is fault


@pytest.mark.parametrize(("header", "wait"), [("2.5", 2.5), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_the_wait_that_is_asked_for_is_kept(header: str, wait: float | None) -> None:
    """In seconds; a date is not read."""
    assert refusal("asking", 429, "", {"Retry-After": header}).wait == wait
    assert refusal("asking", 503, "", {"Retry-After": header}).wait is None


def test_a_key_in_an_answer_is_left_out() -> None:
    """However it is written there."""
    for text in ("X-API-Key: ah-0123456789", '{"session_api_key": "ah-0123456789"}', "api_key=ah-0123456789"):
        assert "ah-0123456789" not in without_keys(text)


def test_what_a_command_has_said_is_kept_in_its_bound() -> None:
    """Standard output first; what was left out is said, and a command that was ended for its time is."""
    command = Command(argv=["true"], seconds=5, most_output=4)
    outcome = Outcome.read("0 6\nYWJjZA==\nZWY=\n")
    assert (outcome.out, outcome.err) == (b"abcd", b"ef")
    ran = outcome.ran(command, 1)
    assert (ran.code, ran.out, ran.err, ran.cut) == (0, b"abcd", b"", True)
    assert Outcome.read("124 0\n\n\n").ran(command, 1).code == 124
    assert Outcome.read("124 0\n\n\n").ran(command, 6).timed_out
    assert Outcome.read("none 0\n\n\n").ran(command, 1).timed_out


@pytest.mark.parametrize(
    "text", ["", "rubbish", "0", "x 1", "0 x", "0 1 2", "0 4\nabc\n", "0 4\n\u00e9\n", "9" * 9999 + " 1"]
)
def test_an_end_of_a_command_that_is_none_is_a_providers_fault(text: str) -> None:
    """Whatever the box's agent has written there."""
    with pytest.raises(ProviderError) as caught:
        Outcome.read(text)
    assert caught.value.fault is ProviderFault.REFUSED


def test_a_look_reads_what_is_there() -> None:
    """In whatever order; the last words count for one that has failed."""
    look = Look.read('kept\nmade 1700000000\nruns 2\nend 137 memory\nlabels {"a": "b"}\naside\nsaid the last words\n')
    assert (look.runs, look.kept, look.aside, look.frozen, look.labels) == (2, True, True, False, {"a": "b"})
    assert look.end is not None
    assert (look.end.code, look.end.out_of_memory, look.end.reason) == (137, True, "the last words")
    assert Look.read("") == Look()


def test_nothing_of_a_command_is_read_by_a_shell() -> None:
    """Words with quotes, spaces and equals signs stay what they are."""
    line = scripts.running(Command(argv=["a=b", "it's $(id)"], environment={"A": "'x y'"}), "/f")
    assert "'A='\"'\"'x y'\"'\"''" in line
    assert "'it'\"'\"'s $(id)'" in line
    assert """'exec "$@"' sh a=b""" in line
