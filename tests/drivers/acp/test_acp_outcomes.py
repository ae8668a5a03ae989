"""Outcomes of turns and exits of ACP agents, and parsed protocol lines, without an agent."""

import asyncio
import json
from typing import Any

import pytest

from sandherd_drivers.acp.message_lines import MessageLines, read_message
from sandherd_drivers.acp.outcomes import (
    AcpOutcome,
    as_start_failure,
    choose_option,
    outcome_of_error_response,
    outcome_of_exit,
    outcome_of_stop_reason,
)

OFFERED = [("b", "allow_always"), ("a", "allow_once"), ("d", "reject_always"), ("c", "reject_once")]


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal", "cancelled", "tired"])
def test_only_end_turn_is_a_success(reason: str) -> None:
    """Every other stop reason fails the task, and is named."""
    outcome = outcome_of_stop_reason(reason, interrupted=False)
    assert (outcome.error_type, outcome.stop_reason, outcome.interrupted) == ("internal", reason, False)
    assert reason in outcome.error
    assert outcome_of_stop_reason("end_turn", interrupted=False) == AcpOutcome("end_turn")


def test_interrupted_turn_is_no_outcome() -> None:
    """A turn counts as interrupted only if the agent reports `cancelled`, not if it ended by itself."""
    assert outcome_of_stop_reason("cancelled", interrupted=True).interrupted
    assert outcome_of_stop_reason("end_turn", interrupted=True) == AcpOutcome("end_turn")
    assert not outcome_of_stop_reason("refusal", interrupted=True).interrupted


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
def test_exit_of_agent_sets_error_type(status: int | None, error_type: str, text: str) -> None:
    """The error type and text follow from the exit status: a signal, an exit code, or none."""
    outcome = outcome_of_exit(status)
    assert (outcome.error_type, outcome.agent_ended) == (error_type, True)
    assert text in outcome.error


def test_error_response_is_shown_with_its_details() -> None:
    """An error about credentials is a start error."""
    outcome = outcome_of_error_response("the prompt", -32603, "Internal error", {"details": "no model"})
    assert (outcome.error_type, outcome.agent_ended) == ("internal", False)
    assert outcome.error == "the agent responded to the prompt with error -32603: Internal error (no model)"
    assert outcome_of_error_response("session/new", -32000, "Authentication required", None).error_type == "start"
    assert as_start_failure(outcome).error_type == "start"
    assert as_start_failure(outcome_of_exit(-9)).error_type == "signal"


def test_option_for_one_call_is_preferred() -> None:
    """The option for one call is chosen wherever it is in the list; a permanent option only if there is no other."""
    assert choose_option(OFFERED, granted=True) == "a"
    assert choose_option(OFFERED, granted=False) == "c"
    assert choose_option([("b", "allow_always")], granted=True) == "b"
    assert choose_option([("b", "allow_always")], granted=False) is None
    assert choose_option([], granted=True) is None


@pytest.mark.parametrize(
    "line",
    [
        b"", b"npm warn", b"42", b"[]", b"null", b'"text"', b"{}", b'{"jsonrpc":"2.0"}', b'{"id":[1],"result":{}}',
        b'{"method":7}', b'{"id":1,"error":"no"}', b"{", b"\xff\xfe", b"[" * 100_000, b'{"method":"x","id":{"a":1}}',
    ],
)  # fmt: skip
def test_line_that_is_no_protocol_message_is_rejected(line: bytes) -> None:
    """A line that is not JSON-RPC, or that the library would fail on, is read as None."""
    assert read_message(line) is None


@pytest.mark.parametrize(
    "message", [{"method": "x"}, {"method": "x", "id": "1"}, {"id": 1, "result": None}, {"id": 1, "error": {}}]
)
def test_protocol_messages_are_read(message: dict[str, Any]) -> None:
    """A request, a notification, a reply and an error are read as they are."""
    assert read_message(json.dumps(message).encode()) == message


async def test_invalid_lines_between_messages_are_output() -> None:
    """Lines that are no message are passed on unchanged, also overlong and unterminated; no message is lost."""
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
