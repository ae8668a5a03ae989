"""A project that fills the shared buckets does not affect other projects."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sandherd.contracts.commands import CancelTask, SubmitTask
from sandherd.contracts.envelope import wrap
from sandherd.contracts.requests import ListLiveTasks
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

Make = Callable[..., Service]
LARGE: dict[str, Any] = {
    "files": {"large": "x" * 120_000},
    "env": {f"LARGE_{number}": "x" * 32_000 for number in range(3)},
}
MOST = 5
"""The number of records of this size that reach one MiB."""


async def test_project_cannot_fill_all_tasks(spawner: Make, person: Any, herd: Broker) -> None:
    """Beyond its share a project's tasks are rejected; its existing ones continue; another project's are accepted."""
    async with spawner(project_records_mb=1, max_sandboxes=1).running():
        occupying = await person.submit(["sleep", "600"])
        await person.reaches(occupying, "running")  # so none of the others ends, which would shorten its record
        tasks = [await _decided(person, await person.submit(["true"], **LARGE)) for _ in range(MOST + 2)]
        rejected = [task for task in tasks if person.types(task) == ["task.rejected"]]
        assert rejected == tasks[MOST:]
        refusal = person.event_data(rejected[0], "task.rejected")
        assert (refusal["field"], "SANDHERD_PROJECT_RECORDS_MB" in refusal["reason"]) == ("project", True)
        await _taken_for("p2", herd, person)
        await person.command(CancelTask(task=occupying), occupying)
        for task in tasks[:MOST]:
            assert (await person.ended(task)).state == "completed"


async def test_project_cannot_fill_all_sandboxes(spawner: Make, person: Any) -> None:
    """The share also limits a project that had many sandboxes without a task one after the other."""
    async with spawner(project_records_mb=1, max_sandboxes=MOST + 2).running():
        sandboxes = [await _decided(person, await person.create(**LARGE)) for _ in range(MOST + 2)]
        refused = [sandbox for sandbox in sandboxes if "sandbox.refused" in person.types(sandbox)]
        assert len(refused) == 2
        assert "SANDHERD_PROJECT_RECORDS_MB" in person.event_data(refused[0], "sandbox.refused")["reason"]


async def _taken_for(project: str, herd: Broker, person: Any) -> None:
    """Wait until a task of another project is accepted."""
    command = wrap(
        SubmitTask(task="theirs", spec=person.spec(["true"])), SubmitTask.type, source="/sandherd/client/other",
        sequence=1, project=project, subject="theirs", time=datetime.now(UTC),
    )  # fmt: skip
    async with herd.bus(Principal.CLIENT, project=project) as bus:
        await bus.publish_command(command)

        async def is_repeated() -> bool:
            return bool((await bus.ask(ListLiveTasks(task="theirs"), project, timeout=PATIENCE)).tasks)

        await eventually(is_repeated)


async def _decided(person: Any, entity: str) -> str:
    """Submit a name until it is accepted or refused: records created at the same time do not count each other."""
    await eventually(lambda: person.types(entity))
    return entity
