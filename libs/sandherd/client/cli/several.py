"""Several tasks from one file: all of them looked at, then given, in an order in which none waits for a later one."""

from pathlib import Path

from sandherd.client import batch
from sandherd.client.cli import printing
from sandherd.client.cli.options import Format
from sandherd.client.cli.talking import Work
from sandherd.client.herd import Herd
from sandherd.client.resuming import going_on

HEADER = ("NAME", "TASK", "DEPENDS ON")


def submit(file: Path, output: Format) -> Work:
    """What gives the tasks of a file. Raises `HerdError` for a file that is wrong, before anything is connected."""
    wanted = batch.read(file)

    async def work(herd: Herd) -> int:
        specs = {one.task: await going_on(herd.connection.ask, one.spec, one.earlier) for one in wanted}
        for spec in specs.values():
            await herd.check(spec)
        for task, spec in specs.items():
            await herd.submit(spec, task=task)
        document = [{"name": one.label, "task": one.task, "depends_on": list(one.spec.depends_on)} for one in wanted]
        rows = [[one.label, one.task, ", ".join(one.spec.depends_on) or None] for one in wanted]
        printing.answer(output, {"tasks": document}, HEADER, rows)
        return 0

    return work
