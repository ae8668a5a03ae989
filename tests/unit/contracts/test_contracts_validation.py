"""Any input on a subject gives at most a typed error with its code and field, and without a part of the payload."""

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.envelope import MAX_EVENT_BYTES
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.schemas import json_schemas
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.subjects import event_subject
from tests.unit.contracts.hostile import (
    DOCUMENTS,
    EVENT_DOCUMENTS,
    HOSTILE,
    Json,
    Read,
    anything,
    changed,
    documents,
    drop,
    encode,
    free_json,
    mutated,
    paths,
    put,
    reader_of,
    refusal,
    subject_of,
    subjects,
)

schemas = cache(json_schemas)
SECRET = "s3cret-7f9a"


@given(subjects, st.binary(max_size=300))
@pytest.mark.parametrize("read", [read_event, read_command])
def test_arbitrary_bytes_are_refused(read: Read, subject: str, document: bytes) -> None:
    """Arbitrary bytes on an arbitrary subject are refused with a typed error."""
    assert refusal(read, subject, document) is not None


@given(documents, st.binary(max_size=300) | anything.map(encode))
def test_arbitrary_json_on_a_good_subject_is_refused(document: Json, sent: bytes) -> None:
    """Arbitrary JSON that is not an envelope is refused on a valid subject."""
    problem = refusal(reader_of(document), subject_of(document), sent)
    assert problem is not None
    assert problem.code in {Code.INVALID_JSON, Code.INVALID_FIELD}


@given(mutated())
def test_changed_document_is_refused_or_valid(case: tuple[Json, Json, tuple[Any, ...]]) -> None:
    """A document with one member dropped or replaced is refused by its field, or still fits the published schemas."""
    document, sent, path = case
    problem = refusal(reader_of(document), subject_of(document), encode(sent))
    if problem is None:
        jsonschema.validate(sent, schemas()["envelope"])
        jsonschema.validate(sent["data"], schemas()[document["type"]])
    elif problem.code in {Code.INVALID_FIELD, Code.WRONG_SUBJECT, Code.UNKNOWN_VERSION}:
        assert problem.field is not None
        of_entity = problem.field == "subject" and path in {("data", "task"), ("data", "sandbox")}
        assert problem.field.split(".")[0] == path[0] or of_entity


@given(free_json())
def test_read_event_can_be_written_and_read_again(document: Json) -> None:
    """JSON of any shape in a free field is read, written and read again as equal, or refused."""
    subject = subject_of(document)
    problem = refusal(read_event, subject, encode(document))
    if problem is None:
        event = read_event(subject, encode(document))
        assert read_event(subject, event.to_json()) == event
    else:
        nul = (Code.INVALID_FIELD, "data") if "\\u0000" in json.dumps(document) else None
        assert problem.code is Code.INVALID_JSON or (problem.code, problem.field) == nul


@given(documents, st.data())
def test_missing_attribute_is_reported(document: Json, data: st.DataObject) -> None:
    """Without a required attribute of the envelope, the error names that attribute."""
    needed = data.draw(
        st.sampled_from(["specversion", "id", "source", "type", "subject", "time", "dataschema", "project", "data"])
    )
    problem = refusal(reader_of(document), subject_of(document), encode(changed(document, (needed,), drop)))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, needed)


@given(documents, st.sampled_from(HOSTILE), st.sampled_from(["project", "subject", "taskid", "sandboxid"]))
def test_hostile_id_is_refused(document: Json, hostile: str, attribute: str) -> None:
    """An id with a wildcard, a dot, a line end and the like is refused in every attribute."""
    assume(attribute in document)
    sent = document | {attribute: hostile}
    problem = refusal(reader_of(document), subject_of(document), encode(sent))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, attribute)


@given(st.sampled_from(EVENT_DOCUMENTS), st.sampled_from(HOSTILE), st.integers(3, 6))
def test_hostile_subject_is_refused(document: Json, hostile: str, token: int) -> None:
    """A valid document on a subject with a hostile token is refused."""
    tokens = subject_of(document).split(".")
    tokens[token] = hostile
    problem = refusal(read_event, ".".join(tokens), encode(document))
    assert problem is not None
    assert problem.code in {Code.WRONG_SUBJECT, Code.UNSAFE_NAME, Code.UNKNOWN_TYPE}


@given(st.sampled_from(EVENT_DOCUMENTS), st.sampled_from(EVENT_DOCUMENTS))
def test_event_on_a_foreign_subject_is_refused(document: Json, other: Json) -> None:
    """An event under another's name, project or entity is refused: the broker guards only the subject."""
    assume(document["type"] != other["type"])
    for subject in (
        subject_of(other),
        event_subject("elsewhere", document["subject"], document["type"]),
        event_subject(document["project"], "somebody-else", document["type"]),
    ):
        problem = refusal(read_event, subject, encode(document))
        assert problem is not None
        assert problem.code in {Code.WRONG_SUBJECT, Code.INVALID_FIELD}


@pytest.mark.parametrize(
    ("attribute", "value", "code"),
    [
        ("specversion", "0.3", Code.INVALID_FIELD),
        ("specversion", "1.1", Code.INVALID_FIELD),
        ("dataschema", "urn:sandherd:v2:agent.message", Code.UNKNOWN_VERSION),
        ("source", "/sandherd/sandbox/sbx-of-another", Code.WRONG_SUBJECT),
        ("source", "/elsewhere", Code.INVALID_FIELD),
        ("sandboxid", "sbx-of-another", Code.WRONG_SUBJECT),
        ("sequence", 0, Code.INVALID_FIELD),
        ("sequence", "1", Code.INVALID_FIELD),
        ("sequence", 2**31, Code.INVALID_FIELD),
        ("time", "0001-01-01T00:00:00+14:00", Code.INVALID_FIELD),
        ("time", "2026-11-20T12:00:00", Code.INVALID_FIELD),
        ("time", 1_700_000_000, Code.INVALID_FIELD),
        ("traceparent", "00-short", Code.INVALID_FIELD),
        ("id", "9f0c0b1e-6f0a-4c56-8a5e-0a4f3b8f9b11", Code.INVALID_FIELD),
        ("id", "00000000-0000-0000-0000-000000000000", Code.INVALID_FIELD),
    ],
)
def test_wrong_attribute_is_refused_by_name(attribute: str, value: Json, code: Code) -> None:
    """Another version, another's source, a number out of range and a time without a zone are named."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.message")
    problem = refusal(read_event, subject_of(document), encode(document | {attribute: value}))
    assert problem is not None
    assert (problem.code, problem.field) == (code, attribute)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_number_unknown_to_json_is_refused_in_free_json(number: str) -> None:
    """`NaN` inside a tool's input is refused: Postgres could not store it."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.tool_use")
    sent = changed(document, ("data", "input"), put({"x": float(number.replace("inity", ""))}))
    problem = refusal(read_event, subject_of(document), encode(sent))
    assert problem is not None
    assert problem.code is Code.INVALID_JSON


@pytest.mark.parametrize(("depth", "code"), [(125, None), (126, Code.INVALID_JSON), (300, Code.INVALID_JSON)])
def test_message_is_nested_to_a_limit(depth: int, code: Code | None) -> None:
    """128 levels, with those of the envelope, are accepted; brackets in a text do not count."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.tool_use")
    marked = encode(changed(document, ("data", "input"), put({"text": "[" * 400, "x": "nested"})))
    problem = refusal(read_event, subject_of(document), marked.replace(b'"nested"', b"[" * depth + b"0" + b"]" * depth))
    assert (problem and problem.code) == code


def test_text_nan_is_accepted() -> None:
    """A text may contain NaN and Infinity."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.message")
    sent = changed(document, ("data", "content"), put("NaN and Infinity"))
    assert refusal(read_event, subject_of(document), encode(sent)) is None


@pytest.mark.parametrize("sent", ["\x00", "a\x00b", "\\\x00", ["x", {"y": "\x00"}], {"\x00": 1}])
def test_nul_is_refused_at_any_depth(sent: Json) -> None:
    """NUL is refused: Postgres can't store it in a text, and it would break every query about events."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.tool_use")
    problem = refusal(read_event, subject_of(document), encode(changed(document, ("data", "input"), put({"x": sent}))))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "data")


@pytest.mark.parametrize("sent", [r"\u0000", r"\\u0000", "u0000", "\\", "\x01"])
def test_text_that_contains_an_escaped_nul_is_accepted(sent: str) -> None:
    """An agent may write about the escape of a NUL, as code does."""
    document = next(sent for sent in EVENT_DOCUMENTS if sent["type"] == "agent.message")
    assert refusal(read_event, subject_of(document), encode(changed(document, ("data", "content"), put(sent)))) is None


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("spawner.submit_task", "submitted_by"),
        ("spawner.cancel_task", "reason"),
        ("spawner.cancel_task", "cancelled_by"),
        ("spawner.terminate_sandbox", "reason"),
        ("message-relay.send_message", "sender_id"),
        ("message-relay.send_message", "correlation_id"),
        ("message-relay.answer_approval", "reason"),
        ("message-relay.answer_approval", "answered_by"),
    ],
)
def test_command_puts_no_nul_into_an_event(kind: str, member: str) -> None:
    """Text that services repeat in their own events is refused if it contains NUL."""
    document = next(sent for sent in DOCUMENTS if sent["type"] == kind)
    sent = changed(document, ("data", member), put("a\x00"))
    problem = refusal(read_command, subject_of(document), encode(sent))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, f"data.{member}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["type"])
def test_oversized_document_is_refused_unread(document: Json) -> None:
    """A document one byte over the limit is too large; one at the limit is not."""
    read, subject = reader_of(document), subject_of(document)
    sent = encode(document)
    problem = refusal(read, subject, sent + b" " * (MAX_EVENT_BYTES + 1 - len(sent)))
    assert problem is not None
    assert (problem.code, problem.remedy) == (Code.TOO_LARGE, "send large data as an artifact and a reference to it")
    assert refusal(read, subject, sent + b" " * (MAX_EVENT_BYTES - len(sent))) is None


def test_unknown_kind_is_not_repeated_but_expected_ones_are_named() -> None:
    """Pydantic's own message for a value that selects one of several models contains the value; ours does not."""
    with pytest.raises(ValidationError) as caught:
        TaskSpec.model_validate({"text": "x", "harness": {"kind": [SECRET]}})
    problem = ContractError.from_validation(caught.value).problem
    assert SECRET not in problem.model_dump_json()
    assert "'command', 'claude'" in problem.message


@pytest.mark.parametrize("limits", [SECRET, f"cost={SECRET}", {"tokens": SECRET}])
def test_limit_that_is_not_understood_is_not_repeated(limits: Any) -> None:
    """The validator of budgets has its own messages, which do not contain the value."""
    with pytest.raises(ValidationError) as caught:
        BudgetLimits.model_validate(limits)
    assert SECRET not in ContractError.from_validation(caught.value).problem.model_dump_json()


@given(documents, st.data())
def test_refusal_never_contains_the_payload(document: Json, data: st.DataObject) -> None:
    """Whatever is wrong with a value of `data`, the value is not in the refusal: it may be a secret."""
    path = data.draw(st.sampled_from([path for path in paths(document) if path[0] == "data" and len(path) > 1]))
    value = data.draw(st.sampled_from([SECRET, [SECRET], {"nested": SECRET}, SECRET * 9000]))
    problem = refusal(reader_of(document), subject_of(document), encode(changed(document, path, put(value))))
    assert problem is None or SECRET not in problem.model_dump_json()
