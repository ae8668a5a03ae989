"""Remedies of a refusal: for an existing object, and for one that was never created."""

from datetime import UTC, datetime

import pytest

from sandherd.client.errors import refused_of
from sandherd.contracts.commands import CreateSandbox, ExtendSandbox
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events.sandbox import SandboxRefused

LIST, GET = "sandherd sandboxes list", "sandherd sandboxes get sbx-a"


@pytest.mark.parametrize(
    ("command", "field", "code", "says"),
    [
        (CreateSandbox.type, "sandbox", Code.CONFLICT, "use another name"),
        (CreateSandbox.type, "sandbox", Code.BUSY, "wait, or terminate a sandbox"),
        (CreateSandbox.type, None, None, LIST),
        (CreateSandbox.type, "spec.runtime", None, "sandherd runtimes"),
        (ExtendSandbox.type, "sandbox", Code.CONFLICT, GET),
        (ExtendSandbox.type, "sandbox", Code.NOT_FOUND, LIST),
        (ExtendSandbox.type, "seconds", Code.INVALID_FIELD, "use a shorter time"),
    ],
)
def test_refused_sandbox_suggests_no_inspection(command: str, field: str | None, code: Code | None, says: str) -> None:
    """The remedy fits the reason: without capacity no name helps, and what does not exist can't be inspected."""
    event = wrap(
        SandboxRefused(command=command, reason="there is no capacity", field=field, code=code),
        SandboxRefused.type,
        source="/sandherd/spawner/sbx-a",
        sequence=1,
        project="default",
        subject="sbx-a",
        time=datetime(2026, 11, 20, tzinfo=UTC),
    )
    remedy = refused_of(event, command).problem.remedy or ""
    assert says in remedy
    assert (GET in remedy) is (says == GET)
