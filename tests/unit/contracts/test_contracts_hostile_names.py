"""Every field with a name, in every request and command, refuses hostile names. The fields are found in the models."""

import json
import string
from datetime import UTC, datetime
from typing import Final

import pytest

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.decoder import read_command
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.labels import LABEL_KEY_PATTERN, LABEL_VALUE_PATTERN
from sandherd.contracts.names import ENV_NAME_PATTERN, SAFE_NAME_PATTERN, new_uuid
from sandherd.contracts.patterns import IMAGE_PATTERN, STORED_NAME_PATTERN
from sandherd.contracts.pull_requests import PULL_REQUEST_LABEL_PATTERN, REVIEWER_PATTERN
from sandherd.contracts.repositories import (
    BRANCH_PATTERN,
    COMMIT_PATTERN,
    LABEL_PATTERN,
    TICKET_PATTERN,
    URL_PATTERN,
)
from sandherd.contracts.schedules import SCHEDULE_NAME_PATTERN
from sandherd.contracts.subjects import command_subject
from sandherd.service.requests import read_request
from tests.unit.contracts.hostile_names import HOSTILE_NAMES
from tests.unit.contracts.string_fields import EACH, KEY, StringField, string_fields

_LETTERS: Final = frozenset(string.ascii_letters + string.digits)
ALLOWED: Final[dict[str, frozenset[str]]] = {
    SAFE_NAME_PATTERN: frozenset(),
    SCHEDULE_NAME_PATTERN: frozenset(),
    STORED_NAME_PATTERN: _LETTERS | {*"_-"},
    ENV_NAME_PATTERN: _LETTERS | {"_"},
    IMAGE_PATTERN: _LETTERS | {*"._/:@-"},
}
"""The patterns of names, and the characters that each allows beyond lower-case letters, digits and dashes."""
LONGEST: Final = {
    SAFE_NAME_PATTERN: 63,
    SCHEDULE_NAME_PATTERN: 40,
    STORED_NAME_PATTERN: 64,
    ENV_NAME_PATTERN: 128,
    IMAGE_PATTERN: 255,
}
NO_NAMES: Final = {
    (BRANCH_PATTERN,): "a branch, which `check_branch` limits further",
    (TICKET_PATTERN,): "the id of a ticket, in no subject",
    (COMMIT_PATTERN,): "the id of a commit",
    (URL_PATTERN,): "the URL of a repository, whose host the spawner has to permit",
    (PULL_REQUEST_LABEL_PATTERN,): "a label at a forge, in no subject",
    (REVIEWER_PATTERN,): "an account at a forge, in no subject",
    (LABEL_PATTERN,): "the label of a local repository, in no subject",
    (r"^[^\x00]*$",): "text for people, or an argument of a program",
    (r"^[^/\x00][^\x00]*$",): "a path in the work tree, which has a rule of its own",
    (r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$",): "a path or a pattern in the work tree, in no subject",
    (r"^[^\x00-\x1f\x7f]*$",): "what an agent calls its tools and sessions",
    (r"^[^\x00-\x1f\x7f]+$",): "the pattern of a command, in no subject",
    (r"^[^\x00-\x20\x7f]*$",): "a model, or a URL",
    (r"^[^\x00-\x1f\x7f]{1,128}$",): "what an agent calls an approval; in subjects its digest stands for it",
    (r"^[^<>\x00-\x1f\x7f]+$",): "the name of a user, in the trailer of a commit",
    (r"^[^<>@\s\x00-\x1f\x7f]+@[^<>@\s\x00-\x1f\x7f]+$",): "the address of a user, in the trailer of a commit",
    (r"^[0-9a-f]{64}$",): "a digest",
    (r"^[0-9a-f]{32}$",): "the life of a process, in no subject",
    (r"^https?://[\x21\x23-\x7e]+$",): "the URL of a webhook, whose address is checked before each request",
    ("^sh[cd]_[a-z0-9-]{1,63}_[A-Za-z0-9_-]{43}$",): "the text of a token or code; in keys its digest stands for it",
    (r"^[a-z][a-z0-9_]{1,39}$",): "a rule, which is compared with those that there are",
    (r"^[A-Za-z0-9+/]+=*$",): "what is sealed",
    (r"^U[A-Z2-7]{55}$",): "a public key",
    (r"^\S+( \S+){4}$",): "due times, which the spawner reads",
    (r"^[A-Za-z0-9_+/-]{1,64}$",): "a time zone, which has to be in the database of time zones",
    (LABEL_KEY_PATTERN,): "the key of a label, in no subject",
    (LABEL_VALUE_PATTERN,): "the value of a label, in no subject",
}
NO_PATTERN: Final = {
    "cursor": "checked against the question that it belongs to",
    "approval_id": "compared with what is stored",
    "contains": "compared with what is stored",
    "source": "compared with what is stored",
    "files.*": "the content of a file",
    "types.*": "compared with the types that there are",
    "artifact": "compared with the subject, which has to be the sandbox's own",
    "subject": "the same",
    "media_type": "shown, and nothing else",
    "public_key": "a key of X25519, which the spawner decodes",
}
"""Fields without a pattern, by the end of their name, and why. Another test sends hostile names there to real services.
"""
FIELDS: Final = string_fields()
NAMES: Final = [field for field in FIELDS if any(pattern in ALLOWED for pattern in field.patterns)]


def is_hostile(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether no name that matches these patterns may be this text: an independent implementation of the rule."""
    [pattern] = [pattern for pattern in patterns if pattern in ALLOWED]
    fits = 0 < len(name) <= LONGEST[pattern] and set(name) <= ALLOWED[pattern]
    if pattern == ENV_NAME_PATTERN:
        return not fits or name[0] in string.digits
    return not fits or name[0] not in _LETTERS


def refusal(field: StringField, name: str) -> Problem | None:
    """The error with which the readers of a document with this name refuse it, or None."""
    try:
        if field.contract in COMMANDS:
            read_command(command_subject(field.contract, "demo"), _command(field, name))
        else:
            read_request(field.contract, json.dumps(field.document(name)).encode(), {"project": "demo"})
    except ContractError as error:
        return error.problem
    return None


def _command(field: StringField, name: str) -> bytes:
    envelope = {
        "specversion": "1.0",
        "id": str(new_uuid()),
        "source": "/sandherd/client/x",
        "type": field.contract,
        "subject": "x",
        "time": datetime.now(UTC).isoformat(),
        "datacontenttype": "application/json",
        "dataschema": f"urn:sandherd:v1:{field.contract}",
        "sequence": 1,
        "project": "demo",
    }
    return json.dumps(envelope | {"data": field.document(name)}).encode()


def names_field(problem: Problem, field: StringField) -> bool:
    """Whether the refusal names the field: it contains the parts of the field's path in order."""
    parts = iter((problem.field or "").split("."))
    return all(step in parts for step in field.path if step not in {KEY, EACH})


def test_every_string_is_declared_as_a_name_or_not() -> None:
    """A new field fails this test until its permitted values are declared."""
    undecided = {
        f"{field.contract} {field.name}"
        for field in FIELDS
        if field not in NAMES
        and field.patterns not in NO_NAMES
        and not (not field.patterns and any(field.name.endswith(end) for end in NO_PATTERN))
    }
    assert undecided == set()
    assert len(HOSTILE_NAMES) > 100
    assert {"sandbox", "task", "name", "exec", "service"} <= {field.path[-1] for field in NAMES}


@pytest.mark.parametrize("field", NAMES, ids=lambda field: f"{field.contract} {field.name} {field.kind or ''}".strip())
def test_hostile_name_is_refused_where_it_is_read(field: StringField) -> None:
    """The typed error names the field, before any handler gets the request or the command."""
    hostile = [name for name in HOSTILE_NAMES if is_hostile(name, field.patterns)]
    assert len(hostile) > 50
    for name in hostile:
        problem = refusal(field, name)
        assert problem is not None, f"{name!r} was taken"
        assert problem.code is Code.INVALID_FIELD, f"{name!r}: {problem}"
        assert names_field(problem, field), f"{name[:80]!r}: {problem}"


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:40])
def test_hostile_project_or_entity_is_refused(name: str) -> None:
    """A hostile name in the subject of a request or in an attribute of the envelope is refused, with its field."""
    with pytest.raises(ContractError) as refused:
        read_request("spawner.tasks", b"{}", {"project": name})
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.UNSAFE_NAME, "project")
    field = next(one for one in NAMES if (one.contract, one.name) == ("spawner.cancel_task", "task"))
    document = json.loads(_command(field, "task-1"))
    for member in ("project", "subject", "taskid", "sandboxid"):
        with pytest.raises(ContractError) as refused:
            read_command(command_subject("spawner.cancel_task", "demo"), json.dumps(document | {member: name}).encode())
        assert refused.value.problem.field == member
