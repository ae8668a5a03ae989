"""The rules about repeated calls: each at its thresholds, and with the false positives that it avoids."""

from typing import Any

import pytest

from tests.unit.monitor.tool_sessions import Session, obeyed


@pytest.fixture
def session(story: Any) -> Session:
    return Session(story)


@pytest.mark.parametrize(("times", "step"), [(3, None), (4, "nudge"), (8, "interrupt"), (12, "pause")])
def test_loop_steps(session: Session, times: int, step: str | None) -> None:
    """The calls are equal except for times in results and for descriptions."""
    for number in range(times):
        session.call("make", f"failed in {number}.2s", exit_code=2)
    assert session.step("loop") == step


def test_loop_is_found_through_other_calls(session: Session) -> None:
    """Other calls in between neither end nor hide a loop. Equal calls that are far apart are not a loop."""
    for number in range(4):
        session.call("make test", "no rule")
        for other in range(3):
            session.call(f"cat {number}-{other}.py", f"content {number} {other}")
    assert session.found("loop") is not None
    apart = Session(session.story)
    for number in range(6):
        apart.call("make test", "no rule")
        for other in range(10):
            apart.call(f"cat {number}-{other}.py", f"content {number} {other}")
    assert apart.found("loop") is None


def test_loop_ends_with_another_result(session: Session) -> None:
    """The fourth call has another result."""
    for result in ("3 failed", "3 failed", "3 failed", "2 failed", "2 failed", "2 failed"):
        session.call("make test", result)
    assert session.found("loop") is None


def test_loop_ends_with_an_edit(session: Session) -> None:
    """Edit and test: each edit makes a new content. A file that returns to an earlier content is no progress."""
    for number in range(12):
        session.call("pytest", "1 failed", outcome="failed", exit_code=1, check="test", check_passed=False)
        session.edit(str(number))
    assert session.all_found() == set()
    for number in range(4):
        session.call("pytest", "1 failed", outcome="failed", exit_code=1, check="test", check_passed=False)
        session.edit(str(8 + number % 2))
    assert session.found("loop") is not None


def test_generated_files_are_no_edits(session: Session) -> None:
    """The repeated command writes a log, with another content each time."""
    for number in range(4):
        session.call("make", "no rule", outcome="failed", exit_code=2)
        session.edit(str(number), "build/make.log")
    assert session.found("loop") is not None


def test_equal_calls_of_one_response_count_once(session: Session) -> None:
    """Three times five equal calls in parallel count as three."""
    for _ in range(3):
        session.together(*[("ls", "a b")] * 5)
    assert session.found("loop") is None
    session.together(("ls", "a b"))
    assert session.found("loop") is not None


@pytest.mark.parametrize(
    ("command", "wait", "takes"),
    [
        ("sleep 55 && cat build.log", 5, 55),
        ("make check-remote", 45, 1),
        ("remote-build --wait", 5, 60),
        ("ps aux", 5, 1),
    ],
)
def test_polls_are_a_loop_only_after_ten(session: Session, command: str, wait: float, takes: float) -> None:
    """A poll is a call that is known to wait, that comes after a pause of the agent, or that takes long."""
    for _ in range(9):
        session.call(command, "still running", wait=wait, takes=takes)
    assert session.all_found() == set()
    session.call(command, "still running", wait=wait, takes=takes)
    assert session.step("loop") == "nudge"
    for _ in range(8):
        session.call(command, "still running", wait=wait, takes=takes)
    assert session.step("loop") == "pause"


def test_sub_agents_have_their_own_calls(session: Session) -> None:
    """One call of each of four agents, in parallel or not, is not a loop; four calls of one of them are."""
    for number in range(4):
        session.call("ls", "a b", parent_tool_use_id=f"agent-{number}")
    assert session.all_found() == set()
    for _ in range(3):
        for number in range(3):
            session.call("ls", "a b", parent_tool_use_id=f"agent-{number}")
    assert session.found("loop") is not None


@pytest.mark.parametrize("outcome", ["outage", "denied", "refused", "cancelled"])
def test_calls_that_were_not_executed_are_no_pattern(session: Session, outcome: str) -> None:
    """An outage for hours leads to no intervention; neither do refusals of a user. Denials have a rule of their own."""
    for _ in range(132):
        session.call("curl https://api.example.com", "503 Service Unavailable", outcome=outcome)
    assert session.all_found() == ({"denials"} if outcome == "denied" else set())


def test_message_of_a_user_begins_a_new_episode(session: Session) -> None:
    """Calls that a user has requested again are not a loop."""
    for _ in range(2):
        for _ in range(3):
            session.call("make", "no rule", outcome="failed")
        session.message()
    assert session.all_found() == set()


def test_loop_is_repeated_or_gone(session: Session) -> None:
    """If there was one other call in between, one other call does not show that the loop is over; two do."""
    for number in range(4):
        session.call("make", "no rule")
        session.call(f"ls {number}", str(number))

    def act() -> None:
        session.call("make", "no rule")
        session.call("ls 8", "8")
        session.call("ls 9", "9")

    assert obeyed(session, "loop", act) == [True, None, False]


def test_other_result_or_an_edit_ends_the_loop_that_a_nudge_was_about(session: Session) -> None:
    """After that, the same call is not a repetition."""
    for _ in range(4):
        session.call("make", "no rule")

    def act() -> None:
        session.edit("1")
        session.call("make", "no rule")
        session.call("make", "built")

    assert obeyed(session, "loop", act) == [False, False]


def test_repeat_varied_at_its_threshold(session: Session) -> None:
    """Ten calls whose results differ lead to a message, and to no stronger step."""
    for number in range(9):
        session.call("flaky", f"{number} of 90 ok")
    assert session.all_found() == set()
    session.call("flaky", "17 of 90 ok")
    assert session.all_found() == {"repeat_varied"}
    for number in range(30):
        session.call("flaky", f"{number} of 90 ok")
    assert session.step("repeat_varied") == "nudge"


@pytest.mark.parametrize("kind", ["grows", "poll", "pause", "edit"])
def test_repeat_varied_avoids(session: Session, kind: str) -> None:
    """Not found: a growing log, a poll, a call after a pause, and calls with an edit in between."""
    for number in range(30):
        result = "\n".join(map(str, range(number))) if kind == "grows" else f"{number} of 90"
        session.call("tail x" if kind == "poll" else "show", result, wait=40 if kind == "pause" else 5)
        if kind == "edit":
            session.edit(str(number))
    assert session.all_found() == set()


@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize(("times", "step"), [(2, None), (3, "nudge"), (5, "interrupt"), (8, "pause")])
def test_cycle_steps(session: Session, length: int, times: int, step: str | None) -> None:
    """Series of each length are found."""
    for _ in range(times):
        for number in range(length):
            session.call(f"cat {number}", f"content {number}")
    assert session.step("cycle") == step


def test_edit_between_breaks_a_cycle(session: Session) -> None:
    """Edit and test, with a new content each time; with an earlier content it is a cycle."""
    for number in range(12):
        session.edit(str(number % 2 if number > 4 else number))
        session.call("edit a.py", "done", tool="Edit")
        session.call("run", "the same failure")
        assert (session.found("cycle") is not None) == (number >= 6), number


def test_series_with_a_poll_is_a_cycle_only_after_ten(session: Session) -> None:
    """The series is `sleep` and a look at the state."""
    for number in range(11):
        session.call("sleep 5", "")
        session.call("query", "pending")
        assert (session.found("cycle") is not None) == (number + 1 >= 10)


def test_calls_of_one_response_are_no_cycle(session: Session) -> None:
    """A, B, A, B, A, B in one response count as two calls."""
    session.together(*[("cat a", "a"), ("cat b", "b")] * 3)
    assert session.all_found() == set()


def test_sub_agents_have_their_own_cycles(session: Session) -> None:
    """Two agents that read the same three files in turns are not a cycle; one of them that does so three times is."""
    for _ in range(3):
        for number in range(3):
            session.call(f"cat {number}", str(number), parent_tool_use_id="one")
            session.call(f"cat {number}-{len(session.events)}", str(number), parent_tool_use_id="two")
    assert session.all_found() == {"cycle"}


def test_cycle_is_repeated_or_gone(session: Session) -> None:
    """The second call of the series completes it; another call ends it."""
    for _ in range(3):
        session.call("cat a", "a")
        session.call("cat b", "b")

    def act() -> None:
        session.call("cat a", "a")
        session.call("cat b", "b")
        session.call("cat c", "c")

    assert obeyed(session, "cycle", act) == [None, True, False]


@pytest.mark.parametrize(("times", "step"), [(2, None), (3, "nudge"), (8, "interrupt"), (12, "pause")])
def test_fan_out_steps(session: Session, times: int, step: str | None) -> None:
    """The same set is requested in another order, and with duplicates."""
    calls = [("cat a", "a"), ("cat b", "b"), ("cat c", "c")]
    for number in range(times):
        session.together(*calls[number % 3 :], *calls[: number % 3], calls[number % 3])
    assert session.step("fan_out") == step


@pytest.mark.parametrize("kind", ["other", "result", "edit", "more", "single"])
def test_fan_out_avoids(session: Session, kind: str) -> None:
    """Not found: another call, another result, an edit, a larger set, and sets of one call."""
    for number in range(3):
        calls = [("cat a", "a"), (f"cat {number}", "b")] if kind == "other" else [("cat a", "a"), ("cat b", "b")]
        if kind == "result":
            calls[1] = ("cat b", f"{number} of 9")
        if kind == "edit":
            session.edit(str(number))
        calls += [(f"cat more {extra}", "x") for extra in range(number)] if kind == "more" else []
        session.together(*calls[: 1 if kind == "single" else None])
    assert session.found("fan_out") is None


def test_fan_out_is_found_once_all_calls_have_ended(session: Session) -> None:
    """The third response requests one more call, which is still running."""
    for _ in range(2):
        session.together(("cat a", "a"), ("cat b", "b"))
    keys = [session.begin(command) for command in ("cat a", "cat b", "cat c")]
    session.end(keys[0], "a")
    session.end(keys[1], "b")
    assert session.found("fan_out") is None


def test_fan_out_is_repeated_or_gone(session: Session) -> None:
    """The whole set shows the pattern again; another set shows that it has stopped."""
    for _ in range(3):
        session.together(("cat a", "a"), ("cat b", "b"))

    def act() -> None:
        session.together(("cat b", "b"), ("cat a", "a"))
        session.together(("cat a", "a"), ("cat d", "d"))

    assert obeyed(session, "fan_out", act) == [None, True, None, False]
