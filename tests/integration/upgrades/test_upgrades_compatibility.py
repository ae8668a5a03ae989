"""The last release's own code reads documents of today's code."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import sandherd.contracts
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.schemas import reply_model
from sandherd.settings import Settings
from spawner.access.catalogue import catalogue
from spawner.spec_resolution import SpawnPolicy
from tests.integration.upgrades.conftest import program
from tests.releases.release_record import last_release

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1"
RELEASE = last_release()
KINDS = ("events", "commands", "requests", "replies", "delivery")
STRICT = {"spawner.list_runtimes"}
"""Replies in which the last release refuses what it does not know: limits and profiles, where the herd's settings name
cores, mounts or forwarded variables. Today's code passes over that, so none will be left when it is released."""

Document = tuple[str, str, Any]


def todays(folder: str) -> dict[str, Any]:
    """Today's examples: every field of every contract is in them."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted((GOLDEN / folder).glob("*.json"))}


async def verdicts(python: Path, *documents: Document) -> dict[tuple[str, str], str | None]:
    found = await program(python, "document_reader.py", stdin_events=documents)
    return {(kind, name): verdict for (kind, name, _), verdict in zip(documents, found, strict=True)}


def again(model: type[BaseModel], example: Any) -> Any:
    """An example of the last release as today's code writes it."""
    return json.loads(model.model_validate_json(json.dumps(example), strict=True).model_dump_json(exclude_none=True))


def without_what_is_newer() -> list[Document]:
    """The document as today's services, workers and clients publish it if no new feature is requested."""
    requests = [("requests", name, again(REQUESTS[name], one)) for name, one in RELEASE.of_kind("requests").items()]
    answers = {name: one for name, one in RELEASE.of_kind("replies").items() if name in REQUESTS}
    replies = [("replies", name, again(reply_model(name), one)) for name, one in answers.items()]
    offer = catalogue(Settings(), SpawnPolicy.of(Settings(), {}), {}, harnesses=["command"], secrets_key="a-key")
    here = offer.model_dump(mode="json", exclude_none=True)
    replies.append(("replies", "spawner.list_runtimes", {"ok": here}))
    spec = RELEASE.of_kind("commands")["spawner.submit_task"]["data"]["spec"]
    plain = {"text": "go", "harness": {"kind": "claude"}}
    tasks = [
        ("task", text, json.loads(TaskSpec.model_validate(one).to_json()))
        for text, one in (("full", spec), ("plain", plain))
    ]
    return [*requests, *replies, *tasks]


@pytest.fixture(scope="module")
def released() -> dict[str, set[str]]:
    """The names in the last release, by kind."""
    return {kind: set(RELEASE.of_kind(kind)) for kind in KINDS}


async def test_last_release_reads_todays_events_and_replies(old: Path, released: dict[str, set[str]]) -> None:
    """The last release reads every event with new fields, every reply, and each request without new fields."""
    events = [(kind, name, one) for kind in ("events", "live") for name, one in todays("events").items()]
    replies = [
        ("replies", name, one) for name, one in todays("replies").items() if name in released["replies"] - {"error"}
    ]
    delivered = [("delivery", name, one) for name, one in todays("delivery").items()]
    found = await verdicts(old, *events, *delivered, *without_what_is_newer())
    newer = set(todays("events")) - released["events"]
    refused = {key: verdict for key, verdict in found.items() if verdict is not None}
    assert refused == {("events", name): "unknown_type" for name in newer}
    # These are separate, as the same names are among those.
    assert {name for (_, name), verdict in (await verdicts(old, *replies)).items() if verdict is not None} == STRICT


async def test_last_release_refuses_unknown_fields(old: Path) -> None:
    """A command with an unknown field is refused by name, instead of executed without it."""
    commands = [("commands", name, one) for name, one in todays("commands").items()]
    refused = {name for (_, name), verdict in (await verdicts(old, *commands)).items() if verdict is not None}
    changed = {name for name, one in todays("commands").items() if RELEASE.of_kind("commands").get(name) != one}
    assert refused == changed
