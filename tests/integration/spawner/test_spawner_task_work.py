"""The files with which a task begins: who may provide them, and how long they are stored."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.repositories import SHARED_BUNDLES
from sandherd.contracts.requests import UploadChunk
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.tasks.unsubmitted_uploads import LIFE, UnsubmittedUploads
from tests.integration.spawner.played import access_handlers
from tests.patience import PATIENCE

Make = Callable[..., Service]
CONTENT = b"not even an archive"


async def uploaded(person: Any, task: str) -> ArtifactRef:
    """Store one chunk for a task that is not submitted yet."""
    name = new_name("upl")
    await person.bus.ask(UploadChunk(sandbox=task, artifact=name, index=0, data=CONTENT), "p1", timeout=PATIENCE)
    return ArtifactRef(
        artifact=name,
        subject=f"sandherd.v1.artifact.p1.{task}.{name}",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        chunks=1,
    )


async def test_upload_for_another_task_is_refused(spawner: Make, person: Any) -> None:
    """A task begins only with its own user's uploads for it: no other task's, and no sandbox's artifact."""
    async with spawner().running():
        work = await uploaded(person, "task-other")
        lies = [work, work.model_copy(update={"subject": "sandherd.v1.artifact.p1.task-mine.*", "artifact": "*"})]
        for number, reference in enumerate(lies):
            await person.submit(["true"], f"task-mine-{number}", work=reference)
            await person.receives(f"task-mine-{number}", "task.rejected")
            assert person.event_data(f"task-mine-{number}", "task.rejected")["field"] == "spec.work"


async def stored(herd: Broker, work: ArtifactRef) -> int:
    async with herd.provisioner() as jetstream:
        info = await jetstream.stream_info("ARTIFACTS", subjects_filter=work.subject)
        return sum((info.state.subjects or {}).values())


async def test_upload_of_a_rejected_task_is_deleted(spawner: Make, person: Any, herd: Broker) -> None:
    """The upload of a rejected task no longer counts against the project's quota; an existing task's stays."""
    async with spawner().running():
        retained, lost = await uploaded(person, "task-one"), await uploaded(person, "task-two")
        await person.submit(["true"], "task-one", work=retained)
        await person.receives("task-one", "task.submitted")
        await person.submit(["true"], "task-one", work=retained, depends_on=["task-one"])
        await person.receives("task-one", "task.refused")
        await person.submit(["true"], "task-two", work=lost, depends_on=["task-two"])
        await person.receives("task-two", "task.rejected")

        async def deleted() -> bool:
            return await stored(herd, lost) == 0

        await person.eventually(deleted)
        assert await stored(herd, retained) == 1


async def test_upload_without_a_task_is_deleted_after_an_hour(person: Any, herd: Broker) -> None:
    """Uploads of a task, of a sandbox, shared ones, and unfinished ones that still grow are retained."""
    async with access_handlers(herd) as live:
        shared = await uploaded(person, SHARED_BUNDLES)
        idle, growing = await uploaded(person, "task-idle"), await uploaded(person, "task-growing")
        uploads, now = UnsubmittedUploads(live), datetime.now(UTC)
        await uploads.delete(now)
        await person.bus.ask(
            UploadChunk(sandbox="task-growing", artifact=growing.artifact, index=1, data=CONTENT),
            "p1",
            timeout=PATIENCE,
        )
        await uploads.delete(now + timedelta(minutes=30))
        await uploads.delete(now + LIFE)
        assert (await stored(herd, idle), await stored(herd, growing), await stored(herd, shared)) == (0, 2, 1)


async def test_files_of_a_task_are_deleted_with_its_record(spawner: Make, person: Any, herd: Broker) -> None:
    """A task's files are deleted with its record and not before: each attempt begins with them."""
    async with spawner(keep_ended=0.3).running():
        work = await uploaded(person, "task-one")

        assert await stored(herd, work) == 1
        await person.submit(["true"], "task-one", work=work)
        await person.receives("task-one", "task.failed")
        assert "not a complete tar archive" in person.event_data("task-one", "task.failed")["error"]

        async def deleted() -> bool:
            return await person.task("task-one") is None and await stored(herd, work) == 0

        await person.eventually(deleted)
