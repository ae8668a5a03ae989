"""One version back: what the last release says is read, and what we say of it is what the last release can read.

Where a field that is not known is refused (commands, requests, what a worker is given), a field that was added since
has to be left out as long as nobody sets it; elsewhere it may be there.
"""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from event_ingest.migrating import Kind, read_migrations
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.delivery import InboxMessage, Receipt
from sandherd.contracts.harnesses import AnyHarness
from sandherd.contracts.reading import read_command, read_event
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.resume import Resume
from sandherd.contracts.schemas import reply_of
from sandherd.contracts.subjects import command_subject, event_subject
from tests.releases.freezing import last_release

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
    """Whether all of a document stands in another, which may have further fields."""
    if isinstance(less, dict) and isinstance(more, dict):
        return all(name in more and within(value, more[name]) for name, value in less.items())
    if isinstance(less, list) and isinstance(more, list):
        return len(less) == len(more) and all(map(within, less, more))
    return bool(less == more)


@pytest.mark.parametrize(("name", "example"), named("events"))
def test_a_released_event_is_read_and_said_again_as_it_was(name: str, example: Any) -> None:
    """Every event of the last release is still one, and nothing is added to it."""
    event = read_event(event_subject(example["project"], example["subject"], name), encoded(example))
    assert json.loads(event.to_json()) == example


@pytest.mark.parametrize(("name", "example"), named("commands"))
def test_a_released_command_is_read_and_said_again_as_it_was(name: str, example: Any) -> None:
    """Every command of the last release is taken, and what we say in its place has no field that it would refuse."""
    command = read_command(command_subject(name, example["project"]), encoded(example))
    assert json.loads(command.to_json()) == example


@pytest.mark.parametrize(("name", "example"), named("requests"))
def test_a_released_request_is_read_and_said_again_as_it_was(name: str, example: Any) -> None:
    """Every request of the last release is answered, and ours, with the same asked, is taken by it."""
    request = REQUESTS[name].model_validate_json(encoded(example), strict=True)
    again = as_on_the_wire(request)
    assert within(example, again)
    assert {field for field in again if field not in example} <= EITHER.get(name, set())


EITHER = {"spawner.upload": {"data"}, "worker.upload": {"artifact"}}
"""Fields that exclude one another: an example shows one of them."""


@pytest.mark.parametrize(("name", "example"), named("replies"))
def test_a_released_reply_is_read_and_said_again_with_all_of_it(name: str, example: Any) -> None:
    """Every reply of the last release is understood; ours says all of that, and perhaps more, which it passes over."""
    model = reply_of(name if name in REQUESTS else "spawner.tasks")
    assert within(example, as_on_the_wire(model.model_validate_json(encoded(example), strict=True)))


@pytest.mark.parametrize(("name", "example"), named("delivery"))
def test_what_was_handed_to_a_released_worker_is_read(name: str, example: Any) -> None:
    """Messages and receipts of the last release are understood, and ours say all of that."""
    assert within(example, as_on_the_wire(DELIVERED[name].model_validate_json(encoded(example), strict=True)))


def test_a_released_task_is_given_to_a_worker_as_it_was() -> None:
    """A worker of the last release refuses fields that it has not, also empty ones: it is given none."""
    spec = RELEASE.of_kind("commands")["spawner.submit_task"]["data"]["spec"]
    assert json.loads(TaskSpec.model_validate(spec).to_json()) == spec
    resume = RELEASE.of_kind("specs")["resume"]
    assert as_on_the_wire(Resume.model_validate(resume)) == resume


@pytest.mark.parametrize(("name", "example"), named("harnesses"))
def test_a_released_harness_is_given_to_a_worker_as_it_was(name: str, example: Any) -> None:
    """The same of every kind of agent."""
    harness = TypeAdapter[BaseModel](AnyHarness).validate_json(encoded(example))
    assert (as_on_the_wire(harness), example["kind"]) == (example, name)


def test_a_released_migration_is_never_edited() -> None:
    """Each is still there as it was."""
    known = {migration.number: migration.sha256 for migration in read_migrations()}
    assert RELEASE.migrations.items() <= known.items()


def test_what_comes_before_new_code_is_numbered_before_what_comes_after_it() -> None:
    """Of what was added since the last release: else what comes before would bring along what breaks that."""
    since = [migration.kind for migration in read_migrations() if migration.number not in RELEASE.migrations]
    assert since == sorted(since, key=[Kind.FOUNDATION, Kind.BEFORE, Kind.AFTER].index)
