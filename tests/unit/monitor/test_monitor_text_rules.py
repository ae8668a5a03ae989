"""The guardian's rules on what an agent writes: monologue and chanting, and the false positives that they avoid."""

from collections.abc import Callable

import pytest

from monitor.facts import ObservedEvent
from monitor.rules.chanting import MAX_CHARS, repetitions
from monitor.rules.monologue import RULE as MONOLOGUE
from tests.unit.monitor.sessions import WorkSession, ever_found, first_found

SENTENCE = "I will now fix the failing test in the parser. "


def written(work: WorkSession, *texts: str) -> list[ObservedEvent]:
    """Responses that are only texts."""
    return [event for text in texts for event in work.response(text)]


def test_three_messages_without_a_call_are_a_monologue(work: WorkSession) -> None:
    """Two are none; the pattern has the ids of the messages."""
    two = written(work, "I will fix it.", "Let me fix it.")
    assert not ever_found("monologue", two)
    found = first_found("monologue", [*two, *written(work, "Fixing it now.")])
    assert found is not None
    assert (found.count, len(found.evidence)) == (3, 3)


def test_calls_and_waiting_end_a_monologue(work: WorkSession) -> None:
    """A call, a sub-agent, an approval, or waiting for a user between: the texts before do not count."""
    betweens: tuple[Callable[[], list[ObservedEvent]], ...] = (
        lambda: work.call("ls"),
        lambda: [work.event("agent.subagent_invoked")],
        lambda: [work.event("agent.waiting", message="for a message")],
        lambda: [work.event("agent.approval_requested"), work.event("approval.granted")],
        lambda: [work.event("agent.turn_started", origin="agent")],
        lambda: [work.event("message.acknowledged", message_id="m", message_type="user_message")],
    )
    for between in betweens:
        assert not ever_found("monologue", [*written(work, "a", "b"), *between(), *written(work, "c", "d")])


def test_open_approval_is_no_monologue(work: WorkSession) -> None:
    """An agent that waits for an answer may explain itself."""
    opened = work.event("agent.approval_requested")
    assert not ever_found("monologue", [opened, *written(work, "a", "b", "c", "d")])


def test_turns_of_background_notices_are_no_monologue(work: WorkSession) -> None:
    """The ends of background tasks begin turns in which the model only writes; those of the monitor's nudge count."""
    notices = [
        event
        for n in range(6)
        for event in (work.event("agent.turn_started", origin="notice"), *written(work, f"{n} ended"))
    ]
    assert not ever_found("monologue", notices)
    nudges = [
        event for n in range(3) for event in (work.event("agent.turn_started", origin="nudge"), *written(work, "yes"))
    ]
    assert ever_found("monologue", [*notices, *nudges])


def test_texts_of_one_response_and_of_sub_agents_count_once_or_not(work: WorkSession) -> None:
    """A response has several texts, and sub-agents write beside the agent."""
    blocks = [work.event("agent.message", 0.1, content=f"block {n}", content_length=7) for n in range(8)]
    assert not ever_found("monologue", blocks)
    of_others = [
        work.event("agent.message", 5, content="x", content_length=1, parent_tool_use_id="sub") for _ in range(8)
    ]
    assert not ever_found("monologue", of_others)


def test_ended_agent_has_no_monologue(work: WorkSession) -> None:
    """Its last texts are its report."""
    assert not ever_found(
        "monologue", [*written(work, "a", "b"), work.event("agent.completed", turns=1), *written(work, "c")]
    )


def test_monologue_is_obeyed_by_a_call_and_ignored_by_messages(work: WorkSession) -> None:
    """As the rule evaluates what comes after its message."""
    message = work.folded(
        "monologue",
        [*written(work, "a", "b", "c"), work.event("agent.message", 9, content="d", content_length=1)],
    )
    assert MONOLOGUE.is_repeated("messages", *message) is True
    acted = work.folded("monologue", [*written(work, "a"), work.event("agent.tool_use")])
    assert MONOLOGUE.is_repeated("messages", *acted) is False


@pytest.mark.parametrize("kind", ["agent.message", "agent.thinking"])
def test_sentence_repeated_ten_times_in_a_text_is_a_chant(work: WorkSession, kind: str) -> None:
    """Nine times is none; the next text ends it."""

    def text(times: int) -> ObservedEvent:
        return (
            work.event(kind, 5, content=SENTENCE * times, content_length=9)
            if kind == "agent.message"
            else work.event(kind, 5, content=SENTENCE * times)
        )

    assert not ever_found("chanting", [text(9)])
    assert ever_found("chanting", [text(10)])
    assert first_found("chanting", [text(10), *work.response("Something else.")]) is None


@pytest.mark.parametrize(
    "text",
    [
        "I will fix the parser now, then " * 12,
        ("Wait.\nI have to read the parser again before I change it!\n\n" * 11) + "The end.",
        "I see. OK. Now. Let me look. " * 10,
        "Intro. " + "".join(f"Step {n}. Now I check the whole configuration again. " for n in range(11)),
        "no punctuation at all in this sentence " * 11,
    ],
    ids=["one line", "lines", "short sentences", "other text between", "no punctuation"],
)
def test_chants_have_many_forms(text: str) -> None:
    """With and without punctuation, over lines, with other text between."""
    assert repetitions(text) >= 10


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "assert value == expected_value, message\n" * 20 + "```\nDone.",
        "```\n" + "the same line of output, and no end\n" * 20,
        "| name of a column | another column |\n" * 20,
        "- the same item of a list, again and again\n" * 20,
        "1. the same item of a list, again and again\n" * 20,
        "### The same heading, again and again\n" * 20,
        "    indented code that is the same again\n" * 20,
        "> quoted output that is the same again\n" * 20,
        "-" * 4000,
        "=-" * 2000,
        ", ".join(f"services/monitor/monitor/rules/rule_{n}.py" for n in range(40)),
        "\n".join(f"services/monitor/monitor/rules/rule_{n}.py is changed." for n in range(40)),
        " ".join(f"Test {n} of the parser passes now." for n in range(40)),
    ],
    ids=lambda text: str(text)[:12],
)
def test_code_tables_lists_and_different_sentences_are_no_chant(text: str) -> None:
    """What repeats by its form, and sentences that have only a part in common."""
    assert repetitions(text) < 10


def test_work_of_a_long_text_is_bounded(work: WorkSession) -> None:
    """Only its end is examined."""
    assert (
        repetitions(SENTENCE * 12 + "".join(f"Sentence number {n} is of its own.\n" for n in range(MAX_CHARS // 30)))
        < 10
    )
    assert ever_found("chanting", [work.event("agent.thinking", content="x y" * 100_000 + ".\n" + SENTENCE * 20)])
