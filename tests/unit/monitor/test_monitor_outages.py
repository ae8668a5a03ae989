"""Outages are shown, with evidence, and no agent is steered for one."""

from datetime import timedelta
from typing import Any

from monitor import sandbox_inspection, sandbox_summary
from monitor.herd import Herd
from monitor.outages import OVER_AFTER
from monitor.rule_set import ALL
from monitor.snapshot import pack, unpack
from tests.unit.monitor.conftest import T0

Story = Any
KEY = ("p1", "sbx-1")


def failed(story: Story, key: str) -> list[Any]:
    """A call that an outage has prevented."""
    return [
        story.seen("agent.tool_use", tool="Bash", tool_use_id=key, input={"command": f"curl {key}"}),
        story.seen("agent.tool_result", tool_use_id=key, result="503", outcome="outage"),
    ]


def retried(story: Story, subtype: str = "api_retry") -> Any:
    return story.seen("agent.system_message", metadata={"subtype": subtype, "error_status": 529})


def herd_after(*events: Any) -> Herd:
    herd = Herd()
    for event in events:
        herd.fold(event)
    return herd


def outages(herd: Herd) -> list[tuple[int, int]]:
    """How often it was seen, and how many events are cited, of the outages that `monitor show` has."""
    view = sandbox_inspection.view(herd.live[KEY], ALL, T0 + timedelta(seconds=1))
    return [(one.count, len(one.evidence)) for one in view.findings if one.rule == "outage"]


def test_prevented_calls_and_repeated_requests_to_the_provider_are_one_outage(story: Story) -> None:
    """`monitor show` has it, and the summary, from which the report is made."""
    herd = herd_after(story.seen("agent.started"), *failed(story, "1"), retried(story), retried(story))
    assert outages(herd) == [(3, 3)]
    found = sandbox_inspection.current_findings(herd.live[KEY], ALL, T0)
    assert [one.rule for one in sandbox_summary.summary_of(herd.live[KEY], found).findings] == ["outage"]
    assert sandbox_inspection.patterns(herd.live[KEY], ALL, T0) == []


def test_it_is_over_after_ten_other_calls(story: Story) -> None:
    """The next one begins a new outage; the evidence has a limit."""
    herd = herd_after(story.seen("agent.started"), *failed(story, "1"))
    for number in range(OVER_AFTER - 1):
        for event in story.call(f"c{number}", given=str(number)):
            herd.fold(event)
    assert outages(herd) == [(1, 1)]
    for event in (*story.call("last"), *failed(story, "2")):
        herd.fold(event)
    assert outages(herd) == [(1, 1)]
    for number in range(20):
        herd.fold(retried(story))
        assert outages(herd) == [(number + 2, min(number + 2, 6))]


def test_it_survives_a_restart(story: Story) -> None:
    """It is part of the snapshot."""
    herd = herd_after(story.seen("agent.started"), retried(story))
    herd.position = 9
    assert outages(unpack(*pack(herd, "a"))) == [(1, 1)]


def test_other_messages_of_the_program_and_finished_agents_have_none(story: Story) -> None:
    """Only a repeated request is an outage, and only for an agent that works."""
    assert outages(herd_after(story.seen("agent.started"), retried(story, "init"))) == []
    ended = herd_after(story.seen("agent.started"), retried(story), story.seen("agent.completed"))
    assert outages(ended) == []


def test_loop_whose_failures_look_like_an_outage_is_found_by_one_rule(story: Story) -> None:
    """The texts of its commands can't hide an agent that repeats them: it gets one message, from `no_progress`."""
    events = [event for number in range(30) for event in failed(story, f"c{number}")]
    for event in events:
        if event.data.type == "agent.tool_use":
            event.data.input["command"] = "curl http://x; echo HTTP 503; false"
    herd = herd_after(*events)
    view = sandbox_inspection.view(herd.live[KEY], ALL, T0 + timedelta(seconds=1))
    assert [one.rule for one in view.findings] == ["no_progress", "outage"]
