"""A project fills the shared ARTIFACTS by uploads with a client's real credential."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.bus.connection import Bus, RefusedError
from sandherd.contracts.commands import SandboxLimits
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import INLINE_BYTES, UploadChunk
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.live_state import LiveState
from spawner.sandboxes.sandbox_record import SandboxRecord
from tests.integration.spawner.played import access_handlers
from tests.patience import PATIENCE

pytestmark = pytest.mark.own_broker

QUOTA = 1024 * 1024 // INLINE_BYTES
"""The number of chunks of the quota: each counts as a full one."""


def one_file(number: int) -> UploadChunk:
    """Upload full chunks of one file."""
    return UploadChunk(sandbox="sbx-1", artifact="upl-1", index=number, data=b"x" * INLINE_BYTES)


def many_files(number: int) -> UploadChunk:
    """Upload files of one byte."""
    return UploadChunk(sandbox="sbx-1", artifact=f"upl-{number}", index=0, data=b"x")


async def make_records(live: LiveState) -> None:
    """Create a record of a sandbox of each project."""
    for project in ("p1", "p2"):
        record = SandboxRecord(
            project=project,
            sandbox="sbx-1",
            runtime="process",
            limits=SandboxLimits(),
            requested_at=datetime.now(UTC),
            state=SandboxState.RUNNING,
        )
        await live.sandboxes.create(record)


async def refusal(bus: Bus, chunk: UploadChunk) -> Any:
    with pytest.raises(RefusedError) as caught:
        await bus.ask(chunk, "p1", timeout=PATIENCE)
    return caught.value.problem


@pytest.mark.parametrize("chunk", [one_file, many_files])
async def test_uploads_beyond_a_projects_quota_are_refused(herd: Broker, chunk: Any) -> None:
    """An upload beyond the quota is `refused` with the setting's name, by any replica; another project can upload."""
    async with (
        herd.bus(Principal.CLIENT, project="p1") as client,
        herd.bus(Principal.CLIENT, project="p2") as other,
    ):
        async with access_handlers(herd, project_uploads_mb=1) as live:
            await make_records(live)
            for number in range(QUOTA):
                await client.ask(chunk(number), "p1", timeout=PATIENCE)
            problem = await refusal(client, chunk(QUOTA))
            assert (problem.code, problem.field) == (Code.REFUSED, "project")
            assert "SANDHERD_PROJECT_UPLOADS_MB" in problem.remedy
            assert (await other.ask(chunk(0), "p2", timeout=PATIENCE)).index == 0
        async with access_handlers(herd, project_uploads_mb=1):
            assert (await refusal(client, chunk(QUOTA + 1))).code is Code.REFUSED
            assert (await other.ask(chunk(1), "p2", timeout=PATIENCE)).index == chunk(1).index
    async with herd.provisioner() as jetstream:
        assert (await jetstream.stream_info("ARTIFACTS")).state.messages == QUOTA + 2
