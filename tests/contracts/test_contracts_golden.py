"""Every golden example is readable by Sandherd's reader, by CloudEvents' own library, and by its schema."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from pydantic import BaseModel, TypeAdapter, ValidationError

from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EVENTS
from sandherd.contracts.harnesses import HARNESSES, AnyHarness
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.records import RECORDS
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import INLINE_BYTES, REQUESTS, ArtifactPiece, Reply
from sandherd.contracts.resume import Resume
from sandherd.contracts.schemas import json_schemas, reply_model
from sandherd.contracts.specs import SandboxSpec
from sandherd.contracts.subjects import command_subject, event_subject

schemas = cache(json_schemas)
EITHER = {"spawner.upload": {"Upload.data"}, "worker.upload": {"WorkerUpload.artifact"}}
"""Fields that exclude a field which the example shows; the other example shows them."""
SHOWN_ELSEWHERE = {
    "spawner.submit_task": {
        *(
            "CommandHarness.script",
            "CommandHarness.task_as",
            "TaskSpec.resume",
            "TaskSpec.repository",
            "TaskSpec.agent_server",
            "TaskSpec.sealed",
        ),
    },
    "spawner.create_sandbox": {"SandboxSpec.agent_server", "SandboxSpec.sealed"},
}
SCHEDULED = dict.fromkeys(
    ("spawner.set_schedule", "spawner.schedules", "spawner.pause_schedule", "spawner.submitted_task"),
    SHOWN_ELSEWHERE["spawner.submit_task"],
)
"""Requests and replies with the same task."""
"""Types with separate examples, among the harnesses or the specs: a command can't resume a session."""


def read(example: Any) -> Envelope[Any]:
    example_json = example.json
    if example.name in EVENTS:
        return read_event(
            event_subject(example_json["project"], example_json["subject"], example.name), example.document
        )
    return read_command(command_subject(example.name, example_json["project"]), example.document)


def parts(value: Any) -> Iterator[BaseModel]:
    """The models in a value, at any depth."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from parts(getattr(value, name))
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts(item)


REFUSALS = {"error", "busy"}
"""Replies that every request may get."""


def left_out(model: BaseModel) -> set[str]:
    """The fields that an example does not show, at any depth."""
    return {
        f"{type(part).__name__}.{name}"
        for part in parts(model)
        for name in type(part).model_fields
        if name not in part.model_fields_set or getattr(part, name) is None
    }


def check_schema(name: str, document: Any) -> None:
    """Raise unless the published schema of `name` accepts the document."""
    jsonschema.validate(document, schemas()[name], format_checker=jsonschema.FormatChecker())


def stems(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}


def test_every_type_has_an_example(golden: Path) -> None:
    """Each event, command, request and reply has exactly one example, and there is none of anything else."""
    assert stems(golden / "events") == EVENTS.keys()
    assert stems(golden / "commands") == COMMANDS.keys()
    assert stems(golden / "requests") == REQUESTS.keys()
    assert stems(golden / "replies") == REQUESTS.keys() | REFUSALS
    assert stems(golden / "harnesses") == HARNESSES.keys()
    assert stems(golden / "delivery") == {"inbox_message", "receipt"}
    assert stems(golden / "records") == RECORDS.keys()


def test_published_example_is_never_changed(golden: Path) -> None:
    """The digests of all examples equal the recorded ones: a breaking change goes into a new version."""
    lines = (golden / "SHA256SUMS").read_text().splitlines()
    published = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {str(path.relative_to(golden)): path.read_bytes() for path in golden.rglob("*.json")}
    assert {name: hashlib.sha256(document).hexdigest() for name, document in found.items()} == published


def test_event_is_read_and_written_unchanged(event: Any) -> None:
    """Every event is read on its own subject, nothing in it is unknown, and it is written as the same document."""
    assert json.loads(read(event).to_json()) == event.json


def test_command_is_read_and_written_unchanged(command: Any) -> None:
    """Every command is read on its own subject, and written as the same document."""
    assert json.loads(read(command).to_json()) == command.json


def test_an_event_example_shows_every_field(event: Any) -> None:
    """No optional field is left out, so that a reader in another language meets each."""
    assert left_out(read(event).data) == set()


def test_a_command_example_shows_every_field(command: Any) -> None:
    """No optional field of a command is left out either, except for those with separate examples."""
    assert left_out(read(command)) == SHOWN_ELSEWHERE.get(command.name, set())


def test_sealed_secrets_have_an_example(golden: Path) -> None:
    """A spec whose secrets are sealed names them with empty values, and is read and written unchanged."""
    document = json.loads((golden / "specs" / "sealed.json").read_bytes())
    spec = SandboxSpec.model_validate(document)
    assert json.loads(spec.model_dump_json(exclude_unset=True)) == document
    assert spec.sealed is not None
    assert {spec.env[name] for name in spec.secret_env} == {""}


@pytest.mark.parametrize("kind", HARNESSES)
def test_harness_is_read_and_written_unchanged(golden: Path, kind: str) -> None:
    """Every kind of agent has an example with every field set, accepted wherever any kind is."""
    document = (golden / "harnesses" / f"{kind}.json").read_bytes()
    harness = TypeAdapter[BaseModel](AnyHarness).validate_json(document)
    assert type(harness) is HARNESSES[kind]
    assert json.loads(harness.model_dump_json()) == json.loads(document)
    assert left_out(harness) == set()


def test_resume_is_read_and_written_unchanged(golden: Path) -> None:
    """The example has every field set, and the published schema of a task accepts it."""
    document = json.loads((golden / "specs" / "resume.json").read_bytes())
    resume = Resume.model_validate(document)
    assert json.loads(resume.model_dump_json()) == document
    assert left_out(resume) == set()
    spec = {"text": "go on", "harness": {"kind": "claude"}, "resume": document}
    check_schema("spawner.submit_task", {"task": "task-2", "spec": spec})


def test_repository_is_read_and_written_unchanged(golden: Path) -> None:
    """The example has every field set that one with a URL may have, and the schema of a task accepts it."""
    document = json.loads((golden / "specs" / "repository.json").read_bytes())
    repository = Repository.model_validate(document)
    assert json.loads(repository.model_dump_json(exclude_unset=True)) == document
    assert left_out(repository) == {f"Repository.{name}" for name in ("bundle", "label", "join")}
    spec = {"text": "go on", "harness": {"kind": "claude"}, "repository": document}
    check_schema("spawner.submit_task", {"task": "task-2", "spec": spec})


def test_agent_server_is_read_and_written_unchanged(golden: Path) -> None:
    """The example has every field set, and the published schemas of a task and a sandbox accept it with an image."""
    document = json.loads((golden / "specs" / "agent_server.json").read_bytes())
    server = AgentServer.model_validate(document)
    assert json.loads(server.model_dump_json()) == document
    assert left_out(server) == set()
    spec = {"text": "go on", "harness": {"kind": "claude"}, "image": "base:1", "agent_server": document}
    check_schema("spawner.submit_task", {"task": "task-2", "spec": spec})
    check_schema("spawner.create_sandbox", {"sandbox": "sbx-2", "spec": {"image": "base:1", "agent_server": document}})


def test_cloudevents_library_reads_an_event_alike(event: Any) -> None:
    """CloudEvents' own library reads every event, with the same attributes and data."""
    assert_same_attributes(event)


def test_cloudevents_library_reads_a_command_alike(command: Any) -> None:
    """CloudEvents' own library reads every command, with the same attributes and data."""
    assert_same_attributes(command)


def assert_same_attributes(example: Any) -> None:
    theirs = JSONFormat().read(CloudEvent, example.document)
    ours = read(example).model_dump(exclude={"data"}, exclude_none=True) | {"id": str(read(example).id)}
    assert theirs.get_attributes() == ours
    assert theirs.get_data() == example.json["data"]


def test_schemas_accept_an_event(event: Any) -> None:
    """The published schemas accept every event: the envelope's, and the one that `dataschema` names."""
    check_schema("envelope", event.json)
    check_schema(event.json["dataschema"].removeprefix("urn:sandherd:v1:"), event.json["data"])


def test_schemas_accept_a_command(command: Any) -> None:
    """The published schemas accept every command."""
    check_schema("envelope", command.json)
    check_schema(command.json["dataschema"].removeprefix("urn:sandherd:v1:"), command.json["data"])


def test_request_is_read_and_fits_its_schema(question: Any) -> None:
    """Every request is read with every field set, written as the same document, and accepted by its schema."""
    model = REQUESTS[question.name].model_validate_json(question.document, strict=True)
    assert json.loads(model.model_dump_json(exclude_unset=True)) == question.json
    assert left_out(model) - SCHEDULED.get(question.name, set()) == EITHER.get(question.name, set())
    check_schema(f"{question.name}.request", question.json)


def test_reply_is_read_and_fits_its_schema(reply: Any) -> None:
    """Every reply, and the refusal, is read, written as the same document, and accepted by its schema."""
    name = reply.name if reply.name in REQUESTS else "spawner.tasks"
    model = reply_model(name).model_validate_json(reply.document, strict=True)
    assert json.loads(model.model_dump_json(exclude_unset=True)) == reply.json
    wait = set() if reply.name == "busy" else {"Problem.retry_after_seconds"}  # only `busy` states when to retry
    wait |= SCHEDULED.get(reply.name, set())
    assert left_out(model) - wait == {f"{type(model).__name__}.{'ok' if reply.name in REFUSALS else 'error'}"}
    check_schema(f"{name}.reply", reply.json)


@pytest.mark.parametrize("size", [0, 1, 2, INLINE_BYTES - 1, INLINE_BYTES])
def test_bytes_of_every_size_are_read_and_fit_the_schema(size: int) -> None:
    """Bytes are base64url: up to the largest chunk they are read and accepted by the schema; more are not."""
    chunk = ArtifactPiece(data=b"\xff" * size, index=1, after=2)
    document = Reply[ArtifactPiece](ok=chunk).model_dump_json(exclude_unset=True)
    assert Reply[ArtifactPiece].model_validate_json(document, strict=True).ok == chunk
    check_schema("spawner.download_chunk.reply", json.loads(document))
    larger = {"ok": json.loads(document)["ok"] | {"data": "A" * (4 * INLINE_BYTES)}}
    with pytest.raises(jsonschema.ValidationError):
        check_schema("spawner.download_chunk.reply", larger)
    with pytest.raises(ValidationError):
        Reply[ArtifactPiece].model_validate_json(json.dumps(larger))


@pytest.mark.parametrize(
    ("name", "model", "schema"), [("inbox_message", InboxMessage, "inbox-message"), ("receipt", Receipt, "receipt")]
)
def test_deliveries_to_a_worker_are_read(golden: Path, name: str, model: type[BaseModel], schema: str) -> None:
    """The message and its receipt are read with every field set, and accepted by their schemas."""
    document = (golden / "delivery" / f"{name}.json").read_bytes()
    read_back = model.model_validate_json(document, strict=True)
    assert json.loads(read_back.model_dump_json()) == json.loads(document)
    assert left_out(read_back) == set()
    check_schema(schema, json.loads(document))


def test_unknown_field_in_an_example_is_found(golden: Path) -> None:
    """A document with an additional field is written differently."""
    document = json.loads((golden / "events" / "agent.message.json").read_bytes())
    document["data"]["mood"] = "cheerful"
    subject = event_subject(document["project"], document["subject"], "agent.message")
    assert json.loads(read_event(subject, json.dumps(document).encode()).to_json()) != document


@pytest.mark.parametrize("kind", RECORDS)
def test_shared_record_is_read_and_written_unchanged(golden: Path, kind: str) -> None:
    """The example shows every field; fields that only the owner reads are ignored."""
    document = json.loads((golden / "records" / f"{kind}.json").read_bytes())
    record = RECORDS[kind].model_validate(document | {"owner": [1]})
    assert record.model_dump(mode="json") == document
    assert left_out(record) == set()
