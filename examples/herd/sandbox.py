"""Create a sandbox without a task, run a command in it, and copy files."""

import asyncio
import tempfile

from sandherd.client import Herd, SandboxSpec, exit_status


async def main() -> None:
    """Work in a sandbox, and terminate it."""
    async with Herd.connect() as herd:
        sandbox = (await herd.create(SandboxSpec(ttl_seconds=600))).sandbox
        await herd.write(sandbox, b"3 4\n", "numbers.txt")
        execution = await herd.exec(sandbox, ["sh", "-c", "read a b <numbers.txt; echo $((a * b)) | tee product.txt"])
        state = await execution.wait()
        print(exit_status(state), b"".join(piece.data for piece in state.output).decode())
        with tempfile.TemporaryFile() as file:
            await herd.download(sandbox, "product.txt", file)
            assert file.read() == b"12\n"
        await herd.terminate(sandbox)


asyncio.run(main())
