"""Commands and files with the real client, broker, spawner, process runtime and worker."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.commands import CreateSandbox, SandboxSpec, TerminateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Download,
    DownloadChunk,
    Exec,
    ExecKill,
    ExecState,
    ExecStatus,
    FileRead,
    FileWritten,
    ListFiles,
    ListLiveSandboxes,
    ListRuntimes,
    Upload,
    UploadChunk,
)
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import Service
from tests.patience import PATIENCE

MIB = 1024 * 1024
SANDBOX = "sbx-whole"


class Tenant:
    """A user with a sandbox."""

    def __init__(self, person: Any) -> None:
        self.person = person

    async def ask(self, request: Any) -> Any:
        return await self.person.bus.ask(request, "p1", timeout=PATIENCE)

    async def make(self) -> None:
        await self.person.command(CreateSandbox(sandbox=SANDBOX, spec=SandboxSpec()), SANDBOX)
        await self.reaches(SandboxState.RUNNING)

    async def reaches(self, state: SandboxState) -> None:
        async def look() -> bool:
            views = (await self.ask(ListLiveSandboxes(sandbox=SANDBOX))).sandboxes
            return bool(views) and views[0].state is state

        await self.person.eventually(look)

    async def start(self, *command: str, **more: Any) -> ExecState:
        question = Exec(sandbox=SANDBOX, exec=new_name("exc"), command=list(command), wait_seconds=0, **more)
        found: ExecState = await self.ask(question)
        again: ExecState = await self.ask(question)  # the same command: it is not run twice
        assert again.started_at == found.started_at
        return found

    async def writes(self, name: str) -> None:
        """Wait until the command has written something."""

        async def look() -> bool:
            return bool((await self.ask(ExecStatus(sandbox=SANDBOX, exec=name))).output)

        await self.person.eventually(look)

    async def finish(self, name: str) -> tuple[ExecState, dict[str, bytes]]:
        """Wait for the end; returns the command's last state and its whole output."""
        written = {"stdout": b"", "stderr": b""}
        offset = 0
        while True:
            state: ExecState = await self.ask(ExecStatus(sandbox=SANDBOX, exec=name, offset=offset))
            for piece in state.output:
                written[piece.stream] += piece.data
            if state.complete:
                return state, written
            offset = state.next_offset

    async def run(self, *command: str, **more: Any) -> tuple[ExecState, dict[str, bytes]]:
        return await self.finish((await self.start(*command, **more)).exec)

    async def put(self, content: bytes, path: str, **more: Any) -> FileWritten:
        """Upload in chunks, the last one first and one of them twice."""
        name, digest = new_name("upl"), hashlib.sha256(content).hexdigest()
        chunks = [content[at : at + INLINE_BYTES] for at in range(0, len(content), INLINE_BYTES)]
        for index, data in [*reversed(list(enumerate(chunks))), (0, chunks[0])]:
            await self.ask(UploadChunk(sandbox=SANDBOX, artifact=name, index=index, data=data))
        reference = ArtifactRef(
            artifact=name,
            subject=ARTIFACT.fill(project="p1", sandbox=SANDBOX, artifact=name),
            size=len(content),
            sha256=digest,
            chunks=len(chunks),
        )
        request = Upload(
            sandbox=SANDBOX,
            transfer=new_name("trf"),
            path=path,
            artifact=reference,
            sha256=digest,
            wait_seconds=0.1,
            **more,
        )
        while True:
            written: FileWritten = await self.ask(request)
            if written.done:
                return written

    async def get(self, path: str) -> tuple[FileRead, bytes]:
        request = Download(sandbox=SANDBOX, transfer=new_name("trf"), path=path, wait_seconds=0.1)
        read: FileRead = await self.ask(request)
        while not read.done:
            read = await self.ask(request)
        if read.artifact is None:
            return read, read.data or b""
        chunks: dict[int, bytes] = {}
        after = 0
        while len(chunks) < read.artifact.chunks:
            chunk = await self.ask(DownloadChunk(sandbox=SANDBOX, artifact=read.artifact.artifact, after=after))
            chunks[chunk.index], after = chunk.data, chunk.after
        return read, b"".join(chunks[index] for index in sorted(chunks))

    async def refused(self, request: Any) -> Any:
        with pytest.raises(RefusedError) as caught:
            await self.ask(request)
        return caught.value.problem


@pytest.fixture
async def tenant(spawner: Callable[..., Service], person: Any) -> AsyncIterator[Tenant]:
    async with spawner(max_file_mb=6).running():
        found = Tenant(person)
        await found.make()
        yield found


async def test_command_runs_once_with_complete_output(tenant: Tenant) -> None:
    """More output than one reply carries arrives byte for byte from both streams, with the exit status."""
    code = "import os,sys;w=os.write;[w(1, bytes([i%256])*4096) and w(2, b'e') for i in range(512)];sys.exit(7)"
    state, written = await tenant.run("python3", "-c", code)
    assert (state.state, state.exit_code, state.dropped_bytes) == ("exited", 7, 0)
    assert written["stdout"] == b"".join(bytes([i % 256]) * 4096 for i in range(512))
    assert written["stderr"] == b"e" * 512
    state, written = await tenant.run("cat", stdin=bytes(range(256)), cwd=".", env={"A": "ü b"})
    assert written["stdout"] == bytes(range(256))
    state, written = await tenant.run("sh", "-c", "echo $A", env={"A": "ü b"})
    assert written["stdout"].decode() == "ü b\n"
    assert (await tenant.run("sandherd-has-no-such-program"))[0].state == "failed"


async def test_command_ends_by_kill_or_timeout(tenant: Tenant) -> None:
    """A command can be killed with all its children, or times out; other commands are followed at the same time."""
    running = [(await tenant.start("sh", "-c", "echo begun; sleep 600 & sleep 600")).exec for _ in range(5)]
    late = (await tenant.start("sleep", "600", timeout_seconds=1)).exec
    following = [asyncio.create_task(tenant.finish(name)) for name in running]
    assert (await tenant.finish(late))[0].state == "timed_out"
    for name in running:
        await tenant.writes(name)
        await tenant.ask(ExecKill(sandbox=SANDBOX, exec=name, signal="KILL"))
    for state, written in await asyncio.gather(*following):
        assert (state.state, written["stdout"]) == ("killed", b"begun\n")

    async def none_sleeps() -> bool:
        _, written = await tenant.run("sh", "-c", "cat /proc/[0-9]*/comm")
        return "sleep" not in written["stdout"].decode().split()

    await tenant.person.eventually(none_sleeps)  # a killed process has its name until its end is noticed
    problem = await tenant.refused(ExecStatus(sandbox=SANDBOX, exec="exc-never"))
    assert problem.code is Code.NOT_FOUND


async def test_file_is_uploaded_and_downloaded_unchanged(tenant: Tenant) -> None:
    """Five MiB of any bytes, and a name with a space and umlauts, are transferred unchanged; all digests agree."""
    content, path = os.urandom(5 * MIB + 17), "zwei wörter/größe 5 M.bin"
    digest = hashlib.sha256(content).hexdigest()
    written = await tenant.put(content, path, mode=0o640)
    assert (written.path, written.size, written.sha256) == (path, len(content), digest)
    _, seen = await tenant.run("sha256sum", path)
    assert seen["stdout"].decode().startswith(digest)
    entry = next(e for e in (await tenant.ask(ListFiles(sandbox=SANDBOX, recursive=True))).entries if e.path == path)
    assert (entry.kind, entry.size, entry.mode) == ("file", len(content), 0o640)
    read, found = await tenant.get(path)
    assert (read.kind, read.size, read.sha256, read.mode) == ("file", len(content), digest, 0o640)
    assert found == content


async def test_forbidden_transfer_is_refused_with_its_reason(tenant: Tenant) -> None:
    """A path outside of the work tree, a missing file, a file over the cap and an ended sandbox are refused."""
    for path in ("../x", "/etc/passwd", "a/../../x"):
        put = Upload(
            sandbox=SANDBOX, transfer=new_name("trf"), path=path, data=b"x", sha256=hashlib.sha256(b"x").hexdigest()
        )
        for request in (put, Download(sandbox=SANDBOX, transfer=new_name("trf"), path=path)):
            problem = await tenant.refused(request)
            assert (problem.code, problem.field) == (Code.REFUSED, "path"), path
    await tenant.run("ln", "-s", "/etc", "out")
    problem = await tenant.refused(Download(sandbox=SANDBOX, transfer=new_name("trf"), path="out/passwd"))
    assert (problem.code, problem.field) == (Code.REFUSED, "path")
    problem = await tenant.refused(Download(sandbox=SANDBOX, transfer=new_name("trf"), path="nothing"))
    assert problem.code is Code.NOT_FOUND
    await tenant.run("truncate", "-s", "7M", "large")
    problem = await tenant.refused(Download(sandbox=SANDBOX, transfer=new_name("trf"), path="large"))
    assert problem.code is Code.TOO_LARGE
    assert (await tenant.ask(ListRuntimes())).max_file_bytes == 6 * MIB
    await tenant.person.command(TerminateSandbox(sandbox=SANDBOX, reason="asked for"), SANDBOX)
    await tenant.reaches(SandboxState.TERMINATED)
    problem = await tenant.refused(Exec(sandbox=SANDBOX, exec="exc-late", command=["true"]))
    assert (problem.code, problem.message) == (Code.CONFLICT, f"sandbox {SANDBOX} has ended (asked for)")
