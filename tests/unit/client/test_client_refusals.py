"""Remedies of a refusal: for an existing object, and for one that was never created."""

from datetime import UTC, datetime

import pytest

from sandherd.client.errors import refused_of
from sandherd.contracts.commands import CreateSandbox, ExtendSandbox
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.sandbox import SandboxRefused

LIST, GET = "sandherd sandboxes list", "sandherd sandboxes get sbx-a"


@pytest.mark.parametrize(
    ("command", "field", "says"),
    [
        (CreateSandbox.type, "sandbox", LIST),
        (CreateSandbox.type, None, LIST),
        (CreateSandbox.type, "spec.runtime", "sandherd runtimes"),
        (ExtendSandbox.type, "sandbox", GET),
    ],
)
def test_refused_sandbox_suggests_no_inspection(command: str, field: str | None, says: str) -> None:
    """A refused sandbox does not exist: the remedy is another name, or capacity."""
    event = wrap(
        SandboxRefused(command=command, reason="there is no room", field=field),
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
