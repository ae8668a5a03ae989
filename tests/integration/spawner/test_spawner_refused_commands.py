"""Every command that is not carried out is an event of its project, whatever the error is."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from sandherd.contracts.commands import CancelTask, RetryTask, SubmitTask, TerminateSandbox
from sandherd.contracts.envelope import wrap
from sandherd.contracts.names import new_uuid
from sandherd.contracts.subjects import PREFIX, Principal, command_subject
from sandherd.service.service import Service

Make = Callable[..., Service]
SUBMIT = command_subject(SubmitTask.type, "p1")


def submission(**changes: Any) -> dict[str, Any]:
    """A valid submission as a foreign client may write it, with these fields changed; None leaves a field out."""
    document = {
        "specversion": "1.0",
        "id": str(new_uuid()),
        "source": "/sandherd/client/foreign",
        "type": SubmitTask.type,
        "subject": "foreign",
        "time": "2026-11-26T04:00:00Z",
        "datacontenttype": "application/json",
        "dataschema": f"urn:sandherd:v1:{SubmitTask.type}",
        "sequence": 1,
        "project": "p1",
        "taskid": "foreign",
        "data": {"task": "foreign", "spec": {"text": "x", "harness": {"kind": "command", "argv": ["true"]}}},
    } | changes
    return {name: value for name, value in document.items() if value is not None}


def with_spec(**spec: Any) -> dict[str, Any]:
    whole = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}} | spec
    return submission(data={"task": "foreign", "spec": {name: value for name, value in whole.items() if value}})


INVALID: dict[str, tuple[Any, str, str | None]] = {
    "an unknown field": (with_spec(colour="red"), "invalid_field", "data.spec.colour"),
    "no text": (with_spec(text=None), "invalid_field", "data.spec.text"),
    "a text of 100 KiB": (with_spec(text="x" * 100_000), "invalid_field", "data.spec.text"),
    "over 256 KiB": (with_spec(text="x" * 300_000), "too_large", None),
    "no sequence": (submission(sequence=None), "invalid_field", "sequence"),
    "a sequence as text": (submission(sequence="1"), "invalid_field", "sequence"),
    "a source of its own": (submission(source="/acme/portal"), "invalid_field", "source"),
    "an id that is no UUID": (submission(id="one"), "invalid_field", "id"),
    "another version": (submission(dataschema="urn:sandherd:v2:spawner.submit_task"), "unknown_version", "dataschema"),
    "another project": (submission(project="p2"), "wrong_subject", "project"),
    "another task": (submission(subject="another"), "invalid_field", "subject"),
    "no data": (submission(data=None), "invalid_field", "data"),
    "data that is a list": (submission(data=[1]), "invalid_field", "data"),
    "no JSON": (b"\xff{", "invalid_json", None),
    "a list": ([1], "invalid_field", None),
    "nothing": (b"", "invalid_json", None),
    "an escape in a name": (with_spec(**{"\x1b[2J": 1}), "invalid_field", "data.spec.\N{REPLACEMENT CHARACTER}[2J"),
}  # fmt: skip


def _bytes(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


async def refusal(person: Any, sequence: int) -> dict[str, Any]:
    """The only event that refuses the command with this sequence number in COMMANDS."""
    found = await person.eventually(
        lambda: [event for event in person.unique() if event["data"].get("command_sequence") == sequence]
    )
    (event,) = found
    data: dict[str, Any] = event["data"] | {"event": event["type"], "subject": event["subject"]}
    return data


@pytest.mark.own_broker
async def test_every_invalid_submission_is_refused_by_an_event(spawner: Make, person: Any) -> None:
    """Each refusal has the command's id, if it has one, its sequence number, a code, and the field."""
    sent: dict[str, tuple[int, str]] = {}
    async with spawner().running():
        for name, (document, _, _) in INVALID.items():
            message_id = str(uuid4())
            stored = await person.bus.js.publish(SUBMIT, _bytes(document), headers={"Nats-Msg-Id": message_id})
            sent[name] = (stored.seq, message_id)
        found = {name: await refusal(person, seq) for name, (seq, _) in sent.items()}
    assert {name: (data["event"], data["command"]) for name, data in found.items()} == dict.fromkeys(
        INVALID, ("task.refused", SubmitTask.type)
    )
    assert {name: (data["code"], data.get("field")) for name, data in found.items()} == {
        name: (code, field) for name, (_, code, field) in INVALID.items()
    }
    ids = {
        name: document["id"] if isinstance(document, dict) and document["id"] != "one" else sent[name][1]
        for name, (document, _, _) in INVALID.items()
    }
    assert {name: data["command_id"] for name, data in found.items()} == ids
    assert all(data["reason"].isprintable() for data in found.values())
    assert not [event for event in person.unique() if event["type"] == "task.submitted"]


async def test_a_used_name_is_a_conflict_and_its_task_is_not_affected(spawner: Make, person: Any) -> None:
    """A used name is a conflict, while its task runs and afterwards, even if the second submission is invalid."""
    async with spawner().running():
        await person.submit(["sleep", "600"], "busy")
        await person.reaches("busy", "running")
        await person.submit(["true"], "done")
        await person.ended("done")
        for task, spec in (("busy", ["true"]), ("done", ["false"])):
            command = await person.command(SubmitTask(task=task, spec=person.spec(spec)), task)
            data = await refused(person, command)
            assert (data["code"], data["field"], data["command"]) == ("conflict", "task", SubmitTask.type)
        lonely = await person.command(
            SubmitTask(task="busy", spec=person.spec(["true"], depends_on=("nobody",))), "busy"
        )
        assert (await refused(person, lonely))["code"] == "not_found"
        assert "task.rejected" not in person.types("busy")
        assert (await person.task("busy")).state == "running"


async def test_the_same_task_submitted_again_is_neither_refused_nor_run_twice(spawner: Make, person: Any) -> None:
    """A client that does not know whether its command was stored may send it again, also with another id."""
    async with spawner().running():
        for _ in range(2):
            await person.submit(["true"], "once")
        await person.ended("once")
        later = await person.command(CancelTask(task="once"), "once")
        await refused(person, later)  # commands of one task take effect in their order
    assert person.types("once").count("task.submitted") == 1
    assert person.types("once").count("task.refused") == 1


async def refused(person: Any, command: Any) -> dict[str, Any]:
    """The event that refuses a command, by the command's id."""
    found = await person.eventually(
        lambda: [event for event in person.unique() if event["data"].get("command_id") == str(command.id)]
    )
    (event,) = found
    data: dict[str, Any] = event["data"] | {"event": event["type"]}
    return data


async def test_a_command_about_an_unknown_task_is_refused(spawner: Make, person: Any) -> None:
    """A command about an unknown task is refused as not found, after a time in which the task could be submitted."""
    async with spawner().running():
        for verb in (CancelTask, RetryTask):
            data = await refused(person, await person.command(verb(task="nobody"), "nobody"))
            assert (data["event"], data["code"], data["field"]) == ("task.refused", "not_found", "task")


async def test_what_has_ended_can_not_be_cancelled_or_terminated(spawner: Make, person: Any) -> None:
    """Cancelling or terminating what has ended, and retrying a running or completed task, is refused by an event."""
    async with spawner().running():
        await person.submit(["sleep", "600"], "busy")
        sandbox = (await person.reaches("busy", "running")).sandbox
        retried = await person.command(RetryTask(task="busy"), "busy")
        assert (await refused(person, retried))["code"] == "conflict"
        cancelled = await person.command(CancelTask(task="busy"), "busy")
        await person.ended("busy")
        await person.all_gone()
        for command in (CancelTask(task="busy"), TerminateSandbox(sandbox=sandbox, reason="late")):
            entity = sandbox if isinstance(command, TerminateSandbox) else "busy"
            data = await refused(person, await person.command(command, entity))
            assert (data["code"], data["command"]) == ("conflict", command.type)
        await person.bus.publish_command(cancelled)
    assert not [event for event in person.unique() if event["data"].get("command_id") == str(cancelled.id)]
    assert "task.rejected" not in person.types("busy")


async def test_no_event_is_published_for_a_command_of_no_project(spawner: Make, person: Any, herd: Any) -> None:
    """A command for `fleet`, which means all projects, has no project for an event: it is only a dead letter."""
    async with spawner().running(), herd.bus(Principal.OPERATOR) as operator:
        subject = f"{PREFIX}.command.{SubmitTask.type}.fleet"
        await operator.js.publish(subject, b"{}")
        command = wrap(
            CancelTask(task="nobody"), CancelTask.type, source="/sandherd/client/test", sequence=1, project="p1",
            subject="nobody", time=datetime.now(UTC),
        )  # fmt: skip
        await operator.publish_command(command)
        await refused(person, command)
    assert [event["data"]["command"] for event in person.unique()] == [CancelTask.type]
