"""What the ends of turns and of agents mean, and what a message is. No agent is needed here."""

import asyncio
import json
from typing import Any

import pytest

from sandherd_drivers.acp.lines import MessageLines, read_message
from sandherd_drivers.acp.outcomes import Outcome, at_start, chosen, of_exit, of_refused_request, of_stop_reason

OFFERED = [("b", "allow_always"), ("a", "allow_once"), ("d", "reject_always"), ("c", "reject_once")]


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal", "cancelled", "tired"])
def test_only_an_end_in_order_is_a_success(reason: str) -> None:
    """Every other reason to stop fails the task, and is named."""
    outcome = of_stop_reason(reason, interrupted=False)
    assert (outcome.error_type, outcome.stop_reason, outcome.interrupted) == ("internal", reason, False)
    assert reason in outcome.error
    assert of_stop_reason("end_turn", interrupted=False) == Outcome("end_turn")


def test_a_turn_that_was_interrupted_is_no_outcome() -> None:
    """If the agent says that it was cancelled; one that came to its end anyway has come to its end."""
    assert of_stop_reason("cancelled", interrupted=True).interrupted
    assert of_stop_reason("end_turn", interrupted=True) == Outcome("end_turn")
    assert not of_stop_reason("refusal", interrupted=True).interrupted


@pytest.mark.parametrize(
    ("status", "error_type", "text"),
    [
        (-9, "signal", "SIGKILL"),
        (-35, "signal", "signal 35"),
        (3, "exit_status", "status 3"),
        (0, "exit_status", "status 0"),
        (None, "internal", "closed"),
    ],
)
def test_an_agent_that_is_gone(status: int | None, error_type: str, text: str) -> None:
    """By a signal, by itself, or silent."""
    outcome = of_exit(status)
    assert (outcome.error_type, outcome.gone) == (error_type, True)
    assert text in outcome.error


def test_an_error_in_answer() -> None:
    """It is shown with its details; one about credentials is about the start."""
    outcome = of_refused_request("the prompt", -32603, "Internal error", {"details": "no model"})
    assert (outcome.error_type, outcome.gone) == ("internal", False)
    assert outcome.error == "the agent answered the prompt with error -32603: Internal error (no model)"
    assert of_refused_request("session/new", -32000, "Authentication required", None).error_type == "start"
    assert at_start(outcome).error_type == "start"
    assert at_start(of_exit(-9)).error_type == "signal"


def test_a_decision_is_for_once() -> None:
    """The option for once is chosen, wherever it stands; one for ever only if there is none."""
    assert chosen(OFFERED, granted=True) == "a"
    assert chosen(OFFERED, granted=False) == "c"
    assert chosen([("b", "allow_always")], granted=True) == "b"
    assert chosen([("b", "allow_always")], granted=False) is None
    assert chosen([], granted=True) is None


@pytest.mark.parametrize(
    "line",
    [
        b"", b"npm warn", b"42", b"[]", b"null", b'"text"', b"{}", b'{"jsonrpc":"2.0"}', b'{"id":[1],"result":{}}',
        b'{"method":7}', b'{"id":1,"error":"no"}', b"{", b"\xff\xfe", b"[" * 100_000, b'{"method":"x","id":{"a":1}}',
    ],
)  # fmt: skip
def test_what_is_no_message(line: bytes) -> None:
    """Whatever an agent prints beside its messages, and what the library would end at, is no message."""
    assert read_message(line) is None


@pytest.mark.parametrize(
    "message", [{"method": "x"}, {"method": "x", "id": "1"}, {"id": 1, "result": None}, {"id": 1, "error": {}}]
)
def test_what_is_a_message(message: dict[str, Any]) -> None:
    """A request, a notification, an answer, and an error."""
    assert read_message(json.dumps(message).encode()) == message


async def test_garbage_between_messages_is_output() -> None:
    """It is handed on as it is, also when it is longer than a message may be or has no end; no message is lost."""
    reader, printed = asyncio.StreamReader(limit=100), list[bytes]()
    lines = MessageLines(reader, None, printed.append)  # type: ignore[arg-type]  # it only reads here
    reader.feed_data(b'hello\n{"method":"a"}\n' + b"x" * 250 + b'\n\n{"method":"b"}\n{"method":')
    reader.feed_eof()
    assert [await lines.receive(), await lines.receive(), await lines.receive()] == [
        {"method": "a"},
        {"method": "b"},
        None,
    ]
    assert b"".join(printed) == b"hello\n" + b"x" * 250 + b'\n\n{"method":'
