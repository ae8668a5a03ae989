"""A command that asks for what can't be done is refused when it is asked, by its field."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sandherd.contracts.errors import Code
from sandherd.contracts.reading import read_command
from sandherd.contracts.subjects import command_subject
from tests.unit.contracts.hostile import COMMAND_DOCUMENTS, Json, changed, encode, put, refusal, subject_of


@given(st.text(min_size=1, max_size=5000))
def test_a_hostile_field_name_is_cut_and_made_printable(name: str) -> None:
    """A refusal that names a field never seen before stays short, on one line, and can't steer a terminal."""
    document = next(said for said in COMMAND_DOCUMENTS if said["type"] == "spawner.cancel_task")
    assume(name not in document["data"])
    said = changed(document, ("data",), put({**document["data"], name: 1}))
    problem = refusal(read_command, subject_of(document), encode(said))
    assert problem is not None
    assert problem.field is not None
    assert len(problem.field) <= 200
    assert problem.field.isprintable()


@pytest.mark.parametrize("document", COMMAND_DOCUMENTS, ids=lambda document: document["type"])
def test_no_command_is_for_the_fleet(document: Json) -> None:
    """`fleet` means all projects and is none: a command for it is refused."""
    subject = command_subject(document["type"], "fleet")
    problem = refusal(read_command, subject, encode(document | {"project": "fleet"}))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.UNSAFE_NAME, "project")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "files"), {"../escape": "x"}),
        (("spec", "files"), {"/etc/passwd": "x"}),
        (("spec", "files"), {"a/./b": "x"}),
        (("spec", "files"), {"a//b": "x"}),
        (("spec", "files"), {"a/": "x"}),
        (("spec", "files"), {"big": "x" * (128 * 1024)}),
        (("spec", "env"), {"lower": "x"}),
        (("spec", "env"), {"A=B": "x"}),
        (("spec", "env"), {"API_TOKEN": "nul\0"}),
        (("spec", "secret_env"), ["ABSENT"]),
        (("spec", "harness", "argv"), []),
        (("spec", "harness", "argv"), ["nul\0"]),
        (("spec", "harness", "kind"), "telepathy"),
        (("spec", "text"), ""),
        (("spec", "text"), "nul\0"),
        (("spec", "limits", "memory_mb"), 1),
        (("spec", "unknown"), 1),
        (("task",), "a.b"),
    ],
)
def test_a_task_that_can_not_be_done_is_refused(path: tuple[str, ...], value: Json) -> None:
    """What the kernel or the work tree could not take is refused when it is asked for, not when it is started."""
    document = next(said for said in COMMAND_DOCUMENTS if said["type"] == "spawner.submit_task")
    problem = refusal(read_command, subject_of(document), encode(changed(document, ("data", *path), put(value))))
    assert problem is not None
    assert problem.code is Code.INVALID_FIELD
    assert str(problem.field).startswith("data.")


def test_an_approval_can_not_be_given_by_sending_a_message() -> None:
    """`send_message` says no message of the type `approval`: leave is given by `answer_approval`, which is checked."""
    document = next(said for said in COMMAND_DOCUMENTS if said["type"] == "message-relay.send_message")
    said = changed(document, ("data", "message_type"), put("approval"))
    problem = refusal(read_command, subject_of(document), encode(said))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "data.message_type")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "x" * 129])
def test_an_approval_is_named_in_one_printable_line(name: str) -> None:
    """An answer to what no worker asks is refused when it is given."""
    document = next(said for said in COMMAND_DOCUMENTS if said["type"] == "message-relay.answer_approval")
    problem = refusal(read_command, subject_of(document), encode(changed(document, ("data", "approval_id"), put(name))))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "data.approval_id")
