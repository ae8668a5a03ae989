"""Give a task a folder, and read what it has left and what its events refer to."""

import asyncio
import tarfile
import tempfile
from pathlib import Path

from sandherd.client import Herd, WorkSource, new_task, task_spec


async def main() -> None:
    """Sort the lines of a file in a folder."""
    async with Herd.connect() as herd:
        task = new_task()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "words.txt").write_text("two\none\n")
            work = await herd.upload_work(task, WorkSource(Path(folder)))
        spec = task_spec("Sort it", ["sort", "-o", "words.txt", "words.txt"], work=work, keep_work=True)
        await herd.wait(await herd.submit(spec, task=task))
        with tempfile.TemporaryFile() as archive:
            await herd.fetch_result(task, archive)
            with tarfile.open(fileobj=archive) as tar:
                sorted_words = tar.extractfile("words.txt")
                assert sorted_words is not None
                print(sorted_words.read().decode())
        async for artifact in herd.artifacts(task=task):
            print(artifact.name, artifact.kind, artifact.size, artifact.event)


asyncio.run(main())
