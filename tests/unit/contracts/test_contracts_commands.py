"""An impossible command is refused at its submission, by its field."""

from pathlib import Path

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandherd.contracts.decoder import read_command
from sandherd.contracts.errors import Code
from sandherd.contracts.schemas import json_schemas
from sandherd.contracts.specs import SandboxSpec
from sandherd.contracts.subjects import command_subject
from tests.unit.contracts.hostile import COMMAND_DOCUMENTS, Json, changed, encode, put, refusal, subject_of


@given(st.text(min_size=1, max_size=5000))
def test_hostile_field_name_is_truncated_and_printable(name: str) -> None:
    """A refusal that names an unknown field stays short, on one line, without terminal controls."""
    document = next(
        changed_document for changed_document in COMMAND_DOCUMENTS if changed_document["type"] == "spawner.cancel_task"
    )
    assume(name not in document["data"])
    changed_document = changed(document, ("data",), put({**document["data"], name: 1}))
    problem = refusal(read_command, subject_of(document), encode(changed_document))
    assert problem is not None
    assert problem.field is not None
    assert len(problem.field) <= 200
    assert problem.field.isprintable()


@pytest.mark.parametrize("document", COMMAND_DOCUMENTS, ids=lambda document: document["type"])
def test_command_for_the_fleet_is_refused(document: Json) -> None:
    """`fleet` stands for all projects and is not a project: a command for it is refused."""
    subject = command_subject(document["type"], "fleet")
    problem = refusal(read_command, subject, encode(document | {"project": "fleet"}))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.UNSAFE_NAME, "project")


@pytest.mark.parametrize("document", COMMAND_DOCUMENTS, ids=lambda document: document["type"])
def test_command_about_another_entity_than_its_data_names_is_refused(document: Json) -> None:
    """`subject` is the task or sandbox in the data: a reader of the attributes alone must see it."""
    problem = refusal(read_command, subject_of(document), encode(document | {"subject": "another"}))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "subject")
    assert problem.remedy in {"set it to `data.task`", "set it to `data.sandbox`"}


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
        (("spec", "harness", "kind"), "by telepathy"),
        (("spec", "text"), ""),
        (("spec", "text"), "nul\0"),
        (("spec", "limits", "memory_mb"), 1),
        (("spec", "unknown"), 1),
        (("task",), "a.b"),
    ],
)
def test_impossible_task_is_refused(path: tuple[str, ...], value: Json) -> None:
    """A task that the kernel or the work tree could not accept is refused at its submission, not at its start."""
    document = next(
        changed_document for changed_document in COMMAND_DOCUMENTS if changed_document["type"] == "spawner.submit_task"
    )
    problem = refusal(read_command, subject_of(document), encode(changed(document, ("data", *path), put(value))))
    assert problem is not None
    assert problem.code is Code.INVALID_FIELD
    assert str(problem.field).startswith("data.")


@pytest.mark.parametrize(
    ("harness", "field"),
    [
        ({"kind": "command", "argv": []}, "data.spec.harness"),
        ({"kind": "command"}, "data.spec.harness"),
        ({"kind": "command", "argv": ["a", 1]}, "data.spec.harness.argv.1"),
        ({"kind": "command", "argv": ["a"], "nope": 1}, "data.spec.harness.nope"),
        ({"kind": "command", "argv": ["a"], "command": 1}, "data.spec.harness.command"),
        ({"kind": "acp"}, "data.spec.harness.argv"),
        ({"kind": "acp", "argv": []}, "data.spec.harness.argv"),
    ],
)
def test_field_of_a_refusal_is_a_path_in_the_document(harness: Json, field: str) -> None:
    """The field has no part that only our code knows, such as the kind of a harness. A missing field comes last."""
    document = next(
        changed_document for changed_document in COMMAND_DOCUMENTS if changed_document["type"] == "spawner.submit_task"
    )
    changed_document = changed(document, ("data", "spec", "harness"), put(harness))
    problem = refusal(read_command, subject_of(document), encode(changed_document))
    assert problem is not None
    assert problem.field == field
    assert problem.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("labels",), {"sandherd/mine": "x"}, "Keys of labels"),
        (("files",), {"a/../b": "x"}, "`files`"),
        (("files",), {"big": "x" * 131_072}, "131,072 bytes"),
        (("inputs",), [{"task": "task-none", "paths": ["dist"]}], "`inputs`"),
        (("harness",), {"kind": "command"}, "A `command` harness"),
        (("secret_env",), ["ABSENT"], "`secret_env`"),
    ],
)
def test_rules_that_are_in_no_schema_are_listed(path: tuple[str, ...], value: Json, rule: str) -> None:
    """The published schema accepts these documents, and the service refuses them: docs/wire.md lists the rules."""
    document = next(
        changed_document for changed_document in COMMAND_DOCUMENTS if changed_document["type"] == "spawner.submit_task"
    )
    changed_document = changed(document, ("data", "spec", *path), put(value))
    jsonschema.validate(changed_document["data"], json_schemas()["spawner.submit_task"])
    problem = refusal(read_command, subject_of(document), encode(changed_document))
    assert problem is not None
    assert problem.code is Code.INVALID_FIELD
    page = (Path(__file__).parents[3] / "docs" / "wire.md").read_text(encoding="utf-8")
    rules = page.partition("Some rules are in no schema")[2].partition("\n\nA command is handled")[0]
    assert rule in rules


def test_send_message_cannot_answer_an_approval() -> None:
    """The type `approval` is refused: `answer_approval` is the checked command for it."""
    document = next(
        changed_document
        for changed_document in COMMAND_DOCUMENTS
        if changed_document["type"] == "message-relay.send_message"
    )
    changed_document = changed(document, ("data", "message_type"), put("approval"))
    problem = refusal(read_command, subject_of(document), encode(changed_document))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "data.message_type")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "x" * 129])
def test_approval_id_is_one_printable_line(name: str) -> None:
    """A decision on an id that no worker can have is refused."""
    document = next(
        changed_document
        for changed_document in COMMAND_DOCUMENTS
        if changed_document["type"] == "message-relay.answer_approval"
    )
    problem = refusal(read_command, subject_of(document), encode(changed(document, ("data", "approval_id"), put(name))))
    assert problem is not None
    assert (problem.code, problem.field) == (Code.INVALID_FIELD, "data.approval_id")


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "no_proxy", "_x1"])
def test_variables_of_both_cases_are_accepted(name: str) -> None:
    """Programs read `http_proxy` and the like only in lower case."""
    assert SandboxSpec(env={name: "x"}).env == {name: "x"}


@pytest.mark.parametrize("name", ["1A", "A-B", "A=B", "", "ü"])
def test_invalid_name_of_a_variable_is_refused(name: str) -> None:
    """A name that no shell could set is refused."""
    with pytest.raises(ValidationError):
        SandboxSpec(env={name: "x"})
