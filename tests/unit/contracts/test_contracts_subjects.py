"""The subject table is unambiguous, and the streams and consumers fit it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.streams import CONSUMERS, STREAMS, Consumer
from sandherd.contracts.subjects import (
    BY_NAME,
    TABLE,
    MessageKind,
    Subject,
    command_subject,
    dead_subject,
    event_subject,
    read_event_subject,
    request_subject,
)

safe_names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)


def covers(pattern: str, subject: str) -> bool:
    """Whether a NATS pattern matches all subjects for which `subject` stands: it may contain `*`."""
    wanted, given_tokens = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given_tokens) > place
        if place >= len(given_tokens) or (token not in {"*", given_tokens[place]}):
            return False
    return len(wanted) == len(given_tokens)


def overlaps(one: Subject, other: Subject) -> bool:
    """Whether a subject can match both rows."""
    pair = list(zip(one.pattern().split("."), other.pattern().split("."), strict=False))
    same_length = len(one.template.split(".")) == len(other.template.split("."))
    return same_length and all(a == b or "*" in {a, b} for a, b in pair)


def test_subject_belongs_to_one_row() -> None:
    """A subject matches one row at most, so its type is unique."""
    assert [pair for pair in combinations(TABLE, 2) if overlaps(*pair)] == []


def test_table_and_models_name_the_same_subjects() -> None:
    """Each command and request has a row and each row a model; each event's domain has a row."""
    assert {f"command.{name}" for name in COMMANDS} == {row.name for row in TABLE if row.kind is MessageKind.COMMAND}
    assert {f"request.{name}" for name in REQUESTS} == {row.name for row in TABLE if row.kind is MessageKind.REQUEST}
    domains = {row.name.removeprefix("event.") for row in TABLE if row.kind is MessageKind.EVENT}
    assert {name.partition(".")[0] for name in EVENTS} == domains


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_row_has_producer_consumer_and_stream(row: Subject) -> None:
    """Each row has producers and consumers, and its stream is the one that stores its subject."""
    assert row.producers
    assert row.consumers
    keeping = [stream.name for stream in STREAMS if any(covers(taken, row.pattern()) for taken in stream.subjects)]
    assert keeping == ([row.stream] if row.stream else [])


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.name)
def test_consumer_filters_lie_within_rows_of_its_service(consumer: Consumer) -> None:
    """Each filter of a durable consumer is within a row of its stream of which its service is a consumer."""
    for taken in consumer.filters:
        rows = [row for row in TABLE if row.stream == consumer.stream and may_meet(taken, row.pattern())]
        assert rows
        assert all(consumer.service in row.consumers for row in rows)


def may_meet(pattern: str, other: str) -> bool:
    """Whether two NATS patterns have a subject in common."""
    for one, two in zip(pattern.split("."), other.split("."), strict=False):
        if ">" in {one, two}:
            return True
        if one != two and "*" not in {one, two}:
            return False
    return len(pattern.split(".")) == len(other.split("."))


@given(st.sampled_from(TABLE), st.data())
def test_filled_subject_matches_its_row_only(row: Subject, data: st.DataObject) -> None:
    """`match` returns the names that `fill` was given, and no other row matches."""
    tokens = [token[1:-1] for token in row.template.split(".") if token.startswith("{")]
    names = {token: data.draw(safe_names) for token in tokens}
    subject = row.fill(**names)
    assert row.match(subject) == names
    assert [other.name for other in TABLE if other.match(subject) is not None] == [row.name]


@given(st.sampled_from(TABLE), st.text().filter(lambda text: not text.isalnum()))
def test_subject_is_never_filled_with_an_unsafe_name(row: Subject, name: str) -> None:
    """No wildcard and no dot gets into a subject."""
    if any(ord(char) > 127 or char in "*>. \n\0" for char in name) or not name:
        with pytest.raises(UnsafeNameError):
            row.fill(**{token[1:-1]: name for token in row.template.split(".") if token.startswith("{")})


@given(safe_names, safe_names, st.sampled_from(sorted(EVENTS)))
def test_event_subject_is_read_as_written(project: str, entity: str, event_type: str) -> None:
    """`read_event_subject` returns what `event_subject` was given."""
    assert read_event_subject(event_subject(project, entity, event_type)) == (project, entity, event_type)


@given(st.text())
def test_any_other_subject_is_refused(subject: str) -> None:
    """A subject that is not one of an event is refused as such."""
    with pytest.raises(ContractError) as caught:
        read_event_subject(subject)
    assert caught.value.problem.code is Code.WRONG_SUBJECT


def test_documented_subjects_are_produced() -> None:
    """The subjects of design §3, with the project at the end where a client's credential is bound to it."""
    assert command_subject("spawner.submit_task", "demo") == "sandherd.v1.command.spawner.submit_task.demo"
    assert request_subject("event-ingest.audit", "fleet") == "sandherd.v1.request.event-ingest.audit.fleet"
    assert dead_subject("spawner", Code.INVALID_JSON) == "sandherd.v1.dead.spawner.invalid-json"
    assert BY_NAME["deliver"].fill(project="demo", sandbox="sbx-1") == "sandherd.v1.deliver.demo.sbx-1"
