"""Tasks of one batch that begin from the same local repository share its bundle."""

import asyncio

from sandherd.cli.local_repositories import examine_local, upload_each
from sandherd.client import Herd
from sandherd.client.repositories.source import RepositorySource
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.repositories.conftest import Upstream
from tests.integration.repositories.test_branches import Make, person, spawner
from tests.integration.spawner.conftest import ProjectUser, home
from tests.integration.spawner.file_thief import context_of

__all__ = ["home", "person", "spawner"]


async def uploads(herd: Broker) -> set[str]:
    """The subjects of uploads of clients."""
    async with herd.bus(Principal.SPAWNER) as bus:
        state = (await bus.js.stream_info("ARTIFACTS", subjects_filter="sandherd.v1.artifact.p1.>")).state
        return set(state.subjects or {})


async def test_batch_uploads_a_repository_once(
    spawner: Make, person: ProjectUser, herd: Broker, upstream: Upstream
) -> None:
    """One upload serves all options; the rejection of one task does not remove the bundle of others."""
    upstream.commit({"next": "1"}, "next")
    sources: dict[str, RepositorySource | None] = {
        "task-one": RepositorySource(path=str(upstream.path), base="main"),
        "task-two": RepositorySource(path=str(upstream.path), base="main", ticket="#7"),
        "task-bad": RepositorySource(path=str(upstream.path), base="main", commit_rest=False),
        "task-next": RepositorySource(path=str(upstream.path), base="next"),
    }
    examined_ones = await asyncio.to_thread(examine_local, sources)
    async with spawner().running(), Herd.connect(context_of(herd)) as client:
        before = await uploads(herd)
        found = await upload_each(client, examined_ones)
        new = await uploads(herd) - before
        assert sorted(one.split(".")[-2] for one in new) == ["repository-bundles", "task-next"]
        assert found["task-two"] == found["task-one"].model_copy(update={"ticket": "#7"})
        await person.submit(["true"], task="task-bad", repository=found["task-bad"], runtime="none")
        await person.receives("task-bad", "task.rejected")
        for task in ("task-one", "task-two", "task-next"):
            await person.submit(["/bin/sh", "-c", "cat shop.py"], task=task, repository=found[task])
            assert (await person.ended(task)).state == "completed"
        reserved = await person.submit(["true"], task="repository-bundles")
        await person.receives(reserved, "task.rejected")
