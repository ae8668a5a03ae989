"""An attacker: floods the broker with a worker's credential.

Its arguments are `<url> <credentials> <project> <sandbox> <kind> <count>`. It prints a line when it begins.
"""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats.errors
import uvloop
from nats.aio.client import Client

from sandherd.bus.connection import ConnectionIdentity
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS

_AT_MOST = 200_000
_FIELDS: dict[str, dict[str, Any]] = {
    "agent.message": {"content": "x" * 200, "content_length": 200},
    "agent.approval_requested": {"tool": "Bash", "input": {"command": "ls"}},
    "agent.message_sent": {"recipient": "", "content": "hello"},
}


def event(project: str, sandbox: str, event_type: str, number: int) -> bytes:
    """A valid event of this worker."""
    fields = dict(_FIELDS[event_type])
    if event_type == "agent.approval_requested":
        fields["approval_id"] = f"flood-{number}"
    if event_type == "agent.message_sent":
        fields |= {"recipient": sandbox.replace("sbx-", "sbx-x"), "message_id": f"msg-flood-{number}"}
    return (
        wrap(
            EVENTS[event_type](**fields),
            event_type,
            source=f"/sandherd/sandbox/{sandbox}",
            sequence=number + 1,
            project=project,
            subject=sandbox,
            sandboxid=sandbox,
            time=datetime.now(UTC),
        )
        .model_dump_json(exclude_none=True)
        .encode()
    )


async def _ignore(_error: Exception) -> None:
    return None


async def _connect(url: str, credentials: Path, sandbox: str) -> Client:
    client = Client()
    options = ConnectionIdentity.file(credentials).options()
    await client.connect(
        url, inbox_prefix=f"_INBOX_{sandbox}".encode(), allow_reconnect=False, error_cb=_ignore, **options
    )
    return client


async def attack(url: str, credentials: Path, project: str, sandbox: str, kind: str, count: int) -> None:
    """Run one attack to its end, or until it is cut off."""
    client = await _connect(url, credentials, sandbox)
    types = {"junk": ["completed"], "events": ["message"], "relay": ["approval_requested", "message_sent"]}[kind]
    print("begun", flush=True)
    for number in range(min(count, _AT_MOST)):
        action = types[number % len(types)]
        body = b"1" if kind == "junk" else event(project, sandbox, f"agent.{action}", number)
        await client.publish(f"sandherd.v1.event.{project}.{sandbox}.agent.{action}", body)
        if number % 1000 == 999:
            await client.flush(timeout=20)
    await client.flush(timeout=20)
    await client.close()


if __name__ == "__main__":
    _url, _credentials, _project, _sandbox, _kind, _count = sys.argv[1:]
    with suppress(nats.errors.Error, OSError, TimeoutError):
        uvloop.run(attack(_url, Path(_credentials), _project, _sandbox, _kind, int(_count)))
