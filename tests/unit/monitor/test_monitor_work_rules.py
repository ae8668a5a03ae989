"""The guardian's rules on turns, files and checks, at their thresholds and with the false positives that they avoid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from monitor.evaluation import part_of
from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.rule_set import ALL
from monitor.rules import (
    chanting,
    compaction_storm,
    constraint,
    edit_thrash,
    monologue,
    no_progress,
    unverified_end,
)
from monitor.rules.edit_thrash import RULE as EDIT_THRASH
from monitor.rules.unverified_end import RULE as UNVERIFIED_END
from monitor.snapshot import pack, unpack
from tests.unit.monitor.sessions import WorkSession, ever_found, first_found, states

STUCK = ("git status", "cat parser.py", "ls", "grep -rn parse .")


def stuck(work: WorkSession, responses: int, **facts: Any) -> list[ObservedEvent]:
    """The same four calls with the same results, again and again."""
    return [event for n in range(responses) for event in work.call(STUCK[n % 4], "equal", **facts)]


def explored(work: WorkSession, responses: int, first: int = 0) -> list[ObservedEvent]:
    """A different file is read by each call."""
    return [event for n in range(first, first + responses) for event in work.call(f"cat file{n}.py", f"content {n}")]


# --- no_progress


def test_repeated_calls_without_an_edit_are_no_progress(work: WorkSession) -> None:
    """20 responses are not enough, 21 are; the pattern states how many calls were new."""
    events = stuck(work, 20)
    assert not ever_found("no_progress", events)
    found = first_found("no_progress", [*events, *stuck(work, 1)])
    assert found is not None
    assert "4 of the last 21 calls were new" in found.summary


def test_the_share_of_new_calls_decides(work: WorkSession) -> None:
    """9 of 26 are few, 10 are not: an agent that explores reads what it has not read."""
    few = [*stuck(work, 4), *stuck(work, 17), *explored(work, 9)]
    assert first_found("no_progress", few) is not None
    assert first_found("no_progress", [*few, *explored(work, 1, 50)]) is None
    assert not ever_found("no_progress", explored(work, 120))


def test_edits_and_newly_passing_checks_are_progress(work: WorkSession) -> None:
    """A check that passes again without an edit is none, and a generated file is none."""
    test: dict[str, Any] = {"check": "test", "exit_code": 0}
    assert not ever_found("no_progress", [*stuck(work, 15), *work.edit("a.py", "1"), *stuck(work, 15)])
    passing = [*stuck(work, 15), *work.call("make test", check_passed=True, **test), *stuck(work, 15)]
    assert not ever_found("no_progress", passing)
    again = [event for _ in range(30) for event in work.call("make test", check_passed=True, **test)]
    assert ever_found("no_progress", again)
    assert ever_found("no_progress", [*stuck(work, 15), *work.edit("poetry.lock", "1"), *stuck(work, 15)])


def test_polls_are_no_lack_of_progress(work: WorkSession) -> None:
    """Calls that are far apart, that sleep, tools that wait, and an empty command to a terminal that runs one."""
    apart = [event for _ in range(60) for event in work.call("./status", "running", after=31)]
    sleeping = [event for _ in range(60) for event in work.call("sleep 5 && cat build.log", "running")]
    waiting = [event for _ in range(60) for event in work.call({"id": "b1"}, "running", tool="BashOutput")]
    empty = [event for _ in range(60) for event in work.call("", "running", tool="terminal")]
    for events in (apart, sleeping, waiting, empty):
        assert not ever_found("no_progress", events)


def test_a_repeated_call_with_another_result_is_new(work: WorkSession) -> None:
    """A log that grows, or a list of failures that shrinks, shows progress of what is watched."""
    assert not ever_found("no_progress", [e for n in range(60) for e in work.call("cat build.log", f"{n} of 60")])


@pytest.mark.parametrize("kind", ["research", "review"])
def test_research_and_review_need_no_edit(work: WorkSession, kind: str) -> None:
    """The task's kind is in the first event."""
    started = work.event("agent.started", task_kind=kind)
    assert not ever_found("no_progress", [started, *stuck(work, 60)])


def test_parallel_calls_of_one_response_count_once(work: WorkSession) -> None:
    """Five calls at the same time are one response."""
    events = []
    for n in range(20):
        keys = [f"p{n}-{k}" for k in range(5)]
        events += [work.event("agent.tool_use", 0.1, tool_use_id=key, input={"command": key[-1]}) for key in keys]
        events += [work.event("agent.tool_result", 0.1, tool_use_id=key) for key in keys]
    assert not ever_found("no_progress", events)


def test_no_progress_is_found_once_in_an_episode(work: WorkSession) -> None:
    """After the message about it the rule finds it no more, until a user begins a new episode."""
    sent = work.event
    decided: dict[str, Any] = {
        "rule": "no_progress",
        "step": "nudge",
        "correlation_id": "c",
        "message": "m",
        "message_id": "msg-1",
    }
    first = stuck(work, 25)
    nudged = [*first, sent("monitor.intervention_decided", **decided), *stuck(work, 60)]
    assert first_found("no_progress", nudged) is None
    user = sent("message.acknowledged", message_id="m", message_type="user_message")
    assert first_found("no_progress", [*nudged, user, *stuck(work, 20)]) is None
    assert ever_found("no_progress", [*nudged, user, *stuck(work, 21)])


# --- edit_thrash


def reworked(work: WorkSession, edits: int, path: str = "a.py", first: int = 0) -> list[ObservedEvent]:
    """Each edit replaces the line of the edit before."""
    return [
        event
        for n in range(first, first + edits)
        for event in work.edit(path, f"v{n}", diff_preview=f"@@\n-value = {n}\n+value = {n + 1}\n")
    ]


def test_edits_of_the_same_lines_without_a_check_are_a_thrash(work: WorkSession) -> None:
    """Five are none, six are."""
    events = reworked(work, 5)
    assert not ever_found("edit_thrash", events)
    found = first_found("edit_thrash", [*events, *reworked(work, 1, first=5)])
    assert found is not None
    assert found.summary.startswith("a.py: 6 edits")
    assert len(found.evidence) == 5


def test_checks_and_trials_between_edits_end_the_count(work: WorkSession) -> None:
    """Tests and the project's own programs show what an edit has done; reading the file does not."""
    betweens: tuple[Callable[[], list[ObservedEvent]], ...] = (
        lambda: work.call("make test", check="test"),
        lambda: work.call("cd app && python train.py --epochs 1"),
        lambda: work.call({"command": ["./run.sh", "now"]}, tool="shell"),
    )
    for between in betweens:
        events = [*reworked(work, 4), *between(), *reworked(work, 4, first=4)]
        assert not ever_found("edit_thrash", events)
    editor = {"command": "str_replace", "path": "a.py"}
    for reading in (editor, "cat a.py", "git diff | head -20", "cd x && grep -n value a.py"):
        assert ever_found("edit_thrash", [*reworked(work, 4), *work.call(reading), *reworked(work, 4, first=4)])


def test_a_file_that_grows_is_no_thrash(work: WorkSession) -> None:
    """Twenty functions that are added one by one replace nothing."""
    grown = [
        event
        for n in range(20)
        for event in work.edit("a.py", f"g{n}", diff_preview=f"@@\n context\n+def function_{n}():\n+    return {n}\n")
    ]
    assert not ever_found("edit_thrash", grown)


def contents(work: WorkSession, *versions: str, path: str = "a.py", between: Any = None) -> list[ObservedEvent]:
    """A file that gets these contents one after the other."""
    return [e for one in versions for e in (*work.edit(path, one), *(between() if between else ()))]


def test_second_return_to_an_earlier_content_is_a_thrash(work: WorkSession) -> None:
    """One return is an undone change; two without a check are a thrash."""
    assert not ever_found("edit_thrash", contents(work, "a", "b", "a"))
    assert ever_found("edit_thrash", contents(work, "a", "b", "a", "b"))
    assert ever_found("edit_thrash", contents(work, "a", "b", "a", "c", "a"))


def test_change_made_twice_is_a_thrash_even_with_checks(work: WorkSession) -> None:
    """Between two versions, back and forth, with a red test after each."""

    def red() -> list[ObservedEvent]:
        return work.call("make test", check="test", outcome="failed", exit_code=1, check_passed=False)

    assert not ever_found("edit_thrash", contents(work, "a", "b", "a", between=red))
    assert ever_found("edit_thrash", contents(work, "a", "b", "a", "b", between=red))


def test_changes_for_one_trial_are_no_thrash(work: WorkSession) -> None:
    """Mutations that show that a test is red, and prints that are added and removed, each with a run."""

    def run() -> list[ObservedEvent]:
        return work.call("python -m app")

    versions = [version for n in range(9) for version in ("a", f"mutant {n}")]
    assert not ever_found("edit_thrash", contents(work, *versions, between=run))


def test_files_that_git_restores_are_no_thrash(work: WorkSession) -> None:
    """A comparison with the state before, by git stash."""
    events = contents(work, "a", "b")
    for _ in range(5):
        events += [
            *work.call("git stash && make test", check="test", takes=0.1),
            *work.edit("a.py", "a", after=0.3),
        ]
        events += [*work.call("git stash pop", takes=0.1), *work.edit("a.py", "b", after=0.3)]
    assert not ever_found("edit_thrash", events)


@pytest.mark.parametrize(
    "path", ["package-lock.json", "uv.lock", "dist/app.js", "node_modules/x/y.js", "app.min.js", ".next/x.js"]
)
def test_generated_files_are_ignored(work: WorkSession, path: str) -> None:
    """Programs write them as often as they run."""
    assert not ever_found("edit_thrash", [*contents(work, *"abababab", path=path), *reworked(work, 20, path)])


def test_texts_for_readers_need_no_check(work: WorkSession) -> None:
    """A page that is written in many edits; but not one that goes back and forth."""
    assert not ever_found("edit_thrash", reworked(work, 20, "docs/guide.md"))
    assert ever_found("edit_thrash", contents(work, *"abab", path="docs/guide.md"))


def test_hostile_path_is_bounded_and_plain(work: WorkSession) -> None:
    """What is written to the agent has the path as one line."""
    path = "a\n\x1b[2J" + "x" * 4000 + ".py"
    *_, last = states(contents(work, *"abab", path=path))
    text = EDIT_THRASH.steering_text(last.parts["edit_thrash"])
    assert len(text) < 500
    assert text.isprintable()


# --- unverified_end


def ended(work: WorkSession, *events: list[ObservedEvent], **fields: Any) -> bool:
    """Whether the end after these events is unverified; before it, nothing is found."""
    before = [event for group in events for event in group]
    assert not before or not ever_found("unverified_end", before)
    return first_found("unverified_end", [*before, work.event("agent.completed", **{"turns": 1} | fields)]) is not None


def test_end_without_a_check_after_the_last_edit_is_unverified(work: WorkSession) -> None:
    """Any kind of check counts, also one that fails; one that was not run does not."""
    assert ended(work, work.edit("a.py", "1"), work.call("ls"))
    for check in ("test", "lint", "types", "build"):
        assert not ended(work, work.edit("a.py", "1"), work.call("x", check=check, outcome="failed"))
    assert ended(work, work.edit("a.py", "1"), work.call("make test", check="test", outcome="refused"))
    edit = work.edit("a.py", "1")
    assert ended(work, edit, work.call("make test", check="test"), work.edit("a.py", "2"))


def test_ends_that_need_no_check(work: WorkSession) -> None:
    """No edit, documentation or generated files only, a validated iteration, and an agent that is one program."""
    assert not ended(work, work.call("ls"))
    assert not ended(work, work.edit("README.md", "1"), work.edit("docs/a.rst", "2"), work.edit("uv.lock", "3"))
    assert ended(work, work.edit("requirements.txt", "1"))
    assert not ended(work, work.edit("a.py", "1"), validation_passed=True)
    assert not ended(work, work.call("git bisect reset", takes=0.2), work.edit("a.py", "1", after=0.4))
    begin, end = work.call("sh run.sh", event_subtype="program", takes=9)
    [edit] = work.edit("a.py", "1", after=-5)
    assert not ended(work, [begin, replace(edit, number=end.number), replace(end, number=edit.number)])


def test_change_published_right_after_a_check_was_seen_by_it(work: WorkSession) -> None:
    """Changes are collected for a moment before they are published."""
    check = work.call("make test", check="test", takes=0.1)
    assert not ended(work, check, work.edit("a.py", "1", after=0.4))


def test_unverified_end_outlives_a_message_and_steers_no_agent(work: WorkSession) -> None:
    """An edit before a user's message is still unverified; the only step is to observe."""
    edit = work.edit("a.py", "1")
    assert ended(work, edit, [work.event("message.acknowledged", message_id="m", message_type="user_message")])
    assert list(UNVERIFIED_END.steps) == ["observe"]


# --- compaction_storm


def compacted(work: WorkSession, times: int, calls: Any, **fields: Any) -> list[ObservedEvent]:
    """Each compaction is followed by these calls."""
    return [
        e
        for n in range(times)
        for e in (work.event("agent.context_compacted", trigger="automatic", **fields), *calls(n))
    ]


def test_third_compaction_without_an_edit_is_a_storm(work: WorkSession) -> None:
    """If calls are repeated; two are none."""

    def same(_: int) -> list[ObservedEvent]:
        return [*work.call("cat huge.py"), *work.call("cat other.py")]

    events = [*same(0), *compacted(work, 2, same)]
    assert not ever_found("compaction_storm", events)
    assert ever_found("compaction_storm", [*events, *compacted(work, 1, same)])
    edited = [*same(0), *compacted(work, 2, same), *work.edit("a.py", "1"), *compacted(work, 2, same)]
    assert not ever_found("compaction_storm", edited)


def test_huge_reads_and_requested_compactions_are_no_storm(work: WorkSession) -> None:
    """Content that is larger than a context is read by new calls, with a few repetitions."""

    def new(n: int) -> list[ObservedEvent]:
        again = work.call("cat notes.md") if n < 4 else []
        return [*again, *(e for k in range(5) for e in work.call(f"sed -n {n}{k}p huge.log"))]

    assert not ever_found("compaction_storm", compacted(work, 12, new))
    requested = [
        e for _ in range(9) for e in (work.event("agent.context_compacted", trigger="requested"), *work.call("ls"))
    ]
    assert not ever_found("compaction_storm", requested)


# --- what all have in common


def test_parts_are_small_and_survive_a_snapshot(work: WorkSession) -> None:
    """However long a session is; a restarted monitor continues where it was."""
    events = []
    for n in range(300):
        events += work.call(f"cat file{n}.py", f"content {n}")
        events += work.edit(f"{'folder/' * 30}file{n % 9}.py", f"{n % 4}", diff_preview=f"-line {n}\n+line {n + 1}\n")
        events += [work.event("agent.context_compacted"), *work.response("words " * 40)]
    *_, state = states(events)
    herd = unpack(*pack(Herd(1, [state]), "g"))
    [restored] = herd.live.values()
    assert restored.parts == state.parts
    own = (monologue, chanting, no_progress, edit_thrash, unverified_end, compaction_storm, constraint)
    for rule in own:
        part = part_of(state, rule.RULE, ALL)
        assert len(TypeAdapter(type(part)).dump_json(part)) < 2048, rule.RULE.name


def test_generated_files_are_neither_new_contents_nor_edits(story: Any) -> None:
    """One list for both: what programs write proves no progress of a loop, and needs no check."""
    herd = Herd()
    herd.fold(story.seen("agent.started"))
    generated = ("logs/run.txt", "tmp/a.py", ".coverage", "report-1.xml", "out.log", "uv.lock", "x/.cache/y.py")
    for number, path in enumerate((*generated, "src/main.py")):
        herd.fold(
            story.seen("agent.file_edited", file_path=path, change_type="modified", content_sha256=f"{number:064}")
        )
    herd.fold(story.seen("agent.completed"))
    state = herd.live["p1", "sbx-1"]
    assert state.new_contents == 1
    assert state.parts["unverified_end"].edits == 1
