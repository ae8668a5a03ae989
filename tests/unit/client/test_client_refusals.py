"""What a refusal is told with: what helps where the thing is there, and where it was never made."""

from datetime import UTC, datetime

import pytest

from sandherd.client.errors import refused_of
from sandherd.contracts.commands import CreateSandbox, ExtendSandbox
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.lifecycle import SandboxRefused

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
def test_nobody_is_sent_to_look_at_what_was_never_made(command: str, field: str | None, says: str) -> None:
    """A sandbox that was refused is not there: what helps is another name, or room."""
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
