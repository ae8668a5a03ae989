"""This version reads the last release's documents, and the last release reads this version's.

Where unknown fields are refused (commands, requests, and inputs of a worker), a later field has to be left out unless
it is set; elsewhere it may be there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from event_ingest.migrator import MigrationKind, read_migrations
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.harnesses import AnyHarness
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.resume import Resume
from sandherd.contracts.schemas import reply_model
from sandherd.contracts.subjects import command_subject, event_subject
from tests.releases.release_record import last_release

RELEASE = last_release()
DELIVERED: dict[str, type[BaseModel]] = {"inbox_message": InboxMessage, "receipt": Receipt}


def named(folder: str) -> list[Any]:
    """The released examples of a kind, as parameters."""
    found = RELEASE.of_kind(folder)
    assert found, folder
    return [pytest.param(name, example, id=name) for name, example in found.items()]


def encoded(example: Any) -> bytes:
    return json.dumps(example).encode()


def as_on_the_wire(model: BaseModel) -> Any:
    return json.loads(model.model_dump_json(exclude_none=True))


def within(less: Any, more: Any) -> bool:
    """Whether another document, which may have further fields, contains all of this document."""
    if isinstance(less, dict) and isinstance(more, dict):
        return all(name in more and within(value, more[name]) for name, value in less.items())
    if isinstance(less, list) and isinstance(more, list):
        return len(less) == len(more) and all(map(within, less, more))
    return bool(less == more)


CHANGED = {
    "commands/spawner.create_sandbox": {"/data/spec/runtime": "`process` creates no sandbox from an image"},
    "commands/spawner.submit_task": {"/data/spec/runtime": "`process` creates no sandbox from an image"},
}
"""The values of the last release that its examples no longer have, each with the reason."""


def changed_values(less: Any, more: Any, path: str = "") -> Iterator[str]:
    """The paths of values in a document that another document, which may have further fields, does not have."""
    if isinstance(less, dict) and isinstance(more, dict):
        for name, value in less.items():
            yield from changed_values(value, more.get(name, ...), f"{path}/{name}")
    elif isinstance(less, list) and isinstance(more, list) and len(less) == len(more):
        for number, (one, other) in enumerate(zip(less, more, strict=True)):
            yield from changed_values(one, other, f"{path}/{number}")
    elif less != more:
        yield path


def test_examples_of_the_last_release_have_their_values(golden: Path) -> None:
    """An example may get optional fields; its other values stay, except those that are listed with a reason."""
    found = {
        name: set(changed_values(example, json.loads((golden / f"{name}.json").read_bytes())))
        for name, example in RELEASE.examples.items()
    }
    assert {name: paths for name, paths in found.items() if paths} == {name: {*CHANGED[name]} for name in CHANGED}


@pytest.mark.parametrize(("name", "example"), named("events"))
def test_released_event_is_read_and_written_unchanged(name: str, example: Any) -> None:
    """Every event of the last release is still valid, and nothing is added to it."""
    event = read_event(event_subject(example["project"], example["subject"], name), encoded(example))
    assert json.loads(event.to_json()) == example


@pytest.mark.parametrize(("name", "example"), named("commands"))
def test_released_command_is_read_and_written_unchanged(name: str, example: Any) -> None:
    """Every command of the last release is accepted, and is written without a field that it would refuse."""
    command = read_command(command_subject(name, example["project"]), encoded(example))
    assert json.loads(command.to_json()) == example


@pytest.mark.parametrize(("name", "example"), named("requests"))
def test_released_request_is_read_and_written_unchanged(name: str, example: Any) -> None:
    """Every request of the last release is accepted, and the same request of this version by the last release."""
    request = REQUESTS[name].model_validate_json(encoded(example), strict=True)
    again = as_on_the_wire(request)
    assert within(example, again)
    assert {field for field in again if field not in example} <= EITHER.get(name, set())


EITHER = {"spawner.upload": {"data"}, "worker.upload": {"artifact"}}
"""Fields that exclude one another: an example shows one of them."""


@pytest.mark.parametrize(("name", "example"), named("replies"))
def test_released_reply_is_read_and_written_with_all_fields(name: str, example: Any) -> None:
    """Every reply of the last release is read; this version's has the same fields, and perhaps more."""
    model = reply_model(name if name in REQUESTS else "spawner.tasks")
    assert within(example, as_on_the_wire(model.model_validate_json(encoded(example), strict=True)))


@pytest.mark.parametrize(("name", "example"), named("delivery"))
def test_released_deliveries_are_read(name: str, example: Any) -> None:
    """Messages and receipts of the last release are read, and written with the same fields."""
    assert within(example, as_on_the_wire(DELIVERED[name].model_validate_json(encoded(example), strict=True)))


def test_released_task_is_passed_to_a_worker_unchanged() -> None:
    """A worker of the last release refuses unknown fields, also empty ones, and gets none."""
    spec = RELEASE.of_kind("commands")["spawner.submit_task"]["data"]["spec"]
    assert json.loads(TaskSpec.model_validate(spec).to_json()) == spec
    resume = RELEASE.of_kind("specs")["resume"]
    assert as_on_the_wire(Resume.model_validate(resume)) == resume


@pytest.mark.parametrize(("name", "example"), named("harnesses"))
def test_released_harness_is_passed_to_a_worker_unchanged(name: str, example: Any) -> None:
    """Every kind of agent of the last release is written without new fields."""
    harness = TypeAdapter[BaseModel](AnyHarness).validate_json(encoded(example))
    assert (as_on_the_wire(harness), example["kind"]) == (example, name)


def test_released_migration_is_never_edited() -> None:
    """Each migration of the last release has the recorded digest."""
    known = {migration.number: migration.sha256 for migration in read_migrations()}
    assert RELEASE.migrations.items() <= known.items()


def test_migrations_before_new_code_are_numbered_first() -> None:
    """Migrations since the last release that precede new code have lower numbers than those that follow it."""
    since = [migration.kind for migration in read_migrations() if migration.number not in RELEASE.migrations]
    assert since == sorted(since, key=[MigrationKind.FOUNDATION, MigrationKind.BEFORE, MigrationKind.AFTER].index)
