"""Tasks that join the branch of their ticket."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.repositories import Repository
from sandherd.contracts.subjects import Principal
from sandherd.settings.repositories import BRANCH_PREFIXES
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.repositories.artifacts import BranchArtifacts
from spawner.repositories.branch_names import rules_of
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.preparer import CheckoutPreparer
from spawner.tasks import decisions as of_task
from tests.integration.repositories.conftest import Upstream
from tests.integration.repositories.test_kills import TRACE, URL, HeldLease, LocalHosts
from tests.polling import eventually


async def test_tasks_that_are_submitted_together_join_one_branch(
    herd: Broker, upstream: Upstream, tmp_path: Path
) -> None:
    """The branch of the first one is known to the second one, which was being prepared when it was created."""
    project, names = "joined", ("task-a", "task-b")
    async with herd.bus(Principal.SPAWNER) as bus:
        live, artifacts = LiveState(bus, Meters(CollectorRegistry())), BranchArtifacts(bus)
        mirrors = Mirrors(tmp_path / "mirrors", LocalHosts(upstream.path), artifacts, 1024)
        lease: Any = HeldLease()
        rules = rules_of(BRANCH_PREFIXES)
        preparer = CheckoutPreparer(live, lease, mirrors, artifacts, {"process"}, rules=rules)
        for name in names:
            repository = Repository(url=URL, ticket="PROJ-7", join=True)
            spec = TaskSpec(text=f"do {name}", harness=CommandHarness(argv=["true"]), repository=repository)
            command = wrap(
                SubmitTask(task=name, spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1,
                project=project, subject=name, time=datetime.now(UTC),
            )  # fmt: skip
            await live.tasks.create(of_task.submitted(command, datetime.now(UTC), TRACE))
        running = asyncio.ensure_future(run_until_first(live.follow(), preparer.run()))

        async def branches() -> list[str | None]:
            held = [await live.tasks.load(f"{project}.{name}") for name in names]
            found = [one.record.branch for one in held if one is not None]
            return found if all(found) else []

        try:
            found = await eventually(branches)
        finally:
            await cancel_and_wait([running])
        assert len(set(found)) == 1
