"""The published documents are checked by common tools: AsyncAPI's parser, and ajv in strict mode."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.auth.permissions import for_user, joiner_template, worker_template
from sandherd.contracts import asyncapi
from sandherd.contracts.principals import Principal
from sandherd.contracts.schemas import json_schemas
from sandherd.contracts.subjects import covers
from sandherd.contracts.subscriptions import consumer_name
from tests.contracts.test_contracts_asyncapi import references
from tests.npm_packages import VALIDATORS, node_with

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = Path(__file__).parents[2] / "libs" / "sandherd" / "contracts" / "golden" / "v1"


@cache
def role_document(role: Principal) -> dict[str, Any]:
    return asyncapi.role_document(role)


def faults(folder: Path, *, documents: list[Path], schemas: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    """The errors of each document and schema; an empty list if there are none."""
    task = folder / "task.json"
    task.write_text(
        json.dumps({"asyncapi": [str(path) for path in documents], "schemas": schemas, "examples": examples})
    )
    node, packages = node_with(VALIDATORS)
    ran = subprocess.run([node, packages / "validate.mjs", task], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def golden() -> dict[str, list[Any]]:
    """The golden files of each schema."""
    found: dict[str, list[Any]] = {}
    for folder in ("events", "commands", "requests", "replies"):
        for path in (GOLDEN / folder).glob("*.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            enveloped = folder in {"events", "commands"}
            name = path.stem if enveloped else f"{path.stem}.{'request' if folder == 'requests' else 'reply'}"
            found.setdefault(name, []).append(document["data"] if enveloped else document)
    return found


def test_the_official_parser_and_ajv_accept_every_document(tmp_path: Path) -> None:
    """They accept each document without an error, and every golden file unchanged."""
    documents = [DOCS / "asyncapi.json", *(DOCS / "asyncapi" / f"{role}.json" for role in asyncapi.ROLES)]
    examples = golden()
    found = faults(tmp_path, documents=documents, schemas=dict(json_schemas()), examples=examples)
    assert len(examples) > 150
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert len(found) == len(documents) + len(json_schemas())


def test_they_reject_what_is_wrong(tmp_path: Path) -> None:
    """They reject an OpenAPI keyword in a schema, a missing reference, a wrong example, and an empty reply."""
    document = role_document(Principal.SUBSCRIBER) | {"channels": {}}
    (tmp_path / "broken.json").write_text(json.dumps(document))
    schemas = {
        "keyword": {"type": "object", "discriminator": {"mapping": {}, "propertyName": "kind"}},
        "example": {"type": "string"},
        "reply": json_schemas()["spawner.tasks.reply"],
    }
    examples = {"example": [1], "reply": [{}]}
    found = faults(tmp_path, documents=[tmp_path / "broken.json"], schemas=schemas, examples=examples)
    assert all(found.values())


@pytest.mark.parametrize("role", asyncapi.ROLES)
def test_a_role_may_do_what_its_document_says_and_nothing_else(role: Principal) -> None:
    """The broker permits a role what its document describes, and beyond that its inbox and acknowledgements."""
    document = role_document(role)
    permitted = [worker_template(), joiner_template()] if role is Principal.WORKER else [for_user(role, "p1", "UKEY")]
    publish = [pattern for one in permitted for pattern in one.publish]
    subscribe = [pattern for one in permitted for pattern in one.subscribe]
    for action, templates in (("send", publish), ("receive", subscribe)):
        patterns = [one.replace("{{tag(project)}}", "p1").replace("{{name()}}", "sbx-1") for one in templates]
        operations = [one for one in document["operations"].values() if one["action"] == action]
        subjects = {subject for one in operations if (subject := subject_of(document, one))}
        assert subjects
        for subject in subjects:
            assert any(covers(pattern, subject) for pattern in patterns), subject
        own = [pattern for pattern in patterns if not pattern.startswith(("_INBOX", "$JS.ACK"))]
        assert [pattern for pattern in own if not any(meets(pattern, subject) for subject in subjects)] == []


def subject_of(document: dict[str, Any], operation: dict[str, Any]) -> str | None:
    """The subject of an operation with the test's names; None if it is a reply subject."""
    address = document["channels"][operation["channel"]["$ref"].removeprefix("#/channels/")]["address"]
    names = {"project": "p1", "sandbox": "sbx-1", "consumer": consumer_name("p1", 1)}
    return address and ".".join(
        names.get(token[1:-1], "x") if token.startswith("{") else token for token in address.split(".")
    )


def meets(pattern: str, subject: str) -> bool:
    """Whether a permission covers this subject, or another place of the same subscriptions."""
    place = pattern.rpartition(".")[2]
    same = pattern.replace(place, consumer_name("p1", 1)) if place.startswith("sub-p1-") else pattern
    return covers(same, subject)


@pytest.mark.parametrize("role", asyncapi.ROLES)
def test_a_role_document_states_where_replies_are_delivered(role: Principal) -> None:
    """The inboxes of a sandbox have its name, those of other programs their public key."""
    schemes = role_document(role)["components"]["securitySchemes"]
    prefixes = set(re.findall(r"`(_INBOX_.*?)`", schemes["credentials"]["description"]))
    sandbox = {"_INBOX_<sandbox>", "_INBOX_<sandbox>-join"}
    assert prefixes == (sandbox if role is Principal.WORKER else {"_INBOX_<public key>"})


@pytest.mark.parametrize("role", asyncapi.ROLES)
def test_a_role_document_is_whole_and_says_how_to_connect(role: Principal) -> None:
    """All references resolve; each operation with a reply says where it goes; each message has an example."""
    document = role_document(role)
    for pointer in set(references(document)):
        part: Any = document
        for token in pointer.removeprefix("#/").split("/"):
            part = part[token]
        assert part
    assert document["servers"]["broker"]["security"]
    replies = [one["reply"] for one in document["operations"].values() if "reply" in one]
    assert all(reply["address"]["location"] for reply in replies)
    messages = document["components"]["messages"].values()
    assert [one["name"] for one in messages if not (one["title"] and one["tags"])] == []
    lacking = {one["name"] for one in messages if "examples" not in one}
    assert lacking <= {"artifact", "output", "consumer-info-request", "consumer-info", "pull-request", "pull-status",
                       "acknowledgement"}  # fmt: skip


def test_the_version_moves_with_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further property or schema leads to a higher version."""
    from sandherd.contracts.asyncapi import documents

    now = documents.version()
    schemas = json_schemas()
    more = {**schemas, "receipt": schemas["receipt"] | {"properties": {**schemas["receipt"]["properties"], "new": {}}}}
    monkeypatch.setattr(documents, "json_schemas", lambda: more)
    longer = documents.version()
    monkeypatch.setattr(documents, "json_schemas", lambda: {**schemas, "more": {}})
    versions = [[int(number) for number in text.split(".")] for text in (now, longer, documents.version())]
    assert versions == sorted(versions)
    assert len({tuple(one) for one in versions}) == 3
