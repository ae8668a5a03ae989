"""Commands, files and further attempts through a real spawner, in real sandboxes."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Download,
    DownloadChunk,
    Exec,
    ExecStatus,
    ListFiles,
    Request,
    Upload,
    UploadChunk,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import Service
from tests.patience import PATIENCE

Make = Callable[..., Service]
PROJECT = "p1"


async def ask(person: Any, question: Request[Any]) -> Any:
    """Send a request to the spawner."""
    return await person.bus.ask(question, PROJECT, timeout=PATIENCE)


async def run(person: Any, sandbox: str, *command: str) -> tuple[int | None, bytes]:
    """Run a command to its end; returns its exit code and its output."""
    name = new_name("exc")
    state = await ask(person, Exec(sandbox=sandbox, exec=name, command=list(command)))
    output = list(state.output)
    while not state.complete:
        state = await ask(person, ExecStatus(sandbox=sandbox, exec=name, offset=state.next_offset))
        output += state.output
    return state.exit_code, b"".join(piece.data for piece in output)


async def put(person: Any, sandbox: str, path: str, content: bytes) -> None:
    """Upload a large file."""
    name, digest = new_name("upl"), hashlib.sha256(content).hexdigest()
    chunks = [content[start : start + INLINE_BYTES] for start in range(0, len(content), INLINE_BYTES)]
    for index, chunk in enumerate(chunks):
        await ask(person, UploadChunk(sandbox=sandbox, artifact=name, index=index, data=chunk))
    subject = ARTIFACT.fill(project=PROJECT, sandbox=sandbox, artifact=name)
    reference = ArtifactRef(artifact=name, subject=subject, size=len(content), sha256=digest, chunks=len(chunks))
    question = Upload(sandbox=sandbox, path=path, artifact=reference, sha256=digest, transfer=new_name("trf"))
    while not (await ask(person, question)).done:
        pass


async def take(person: Any, sandbox: str, path: str) -> bytes:
    """Download a large file."""
    question = Download(sandbox=sandbox, path=path, transfer=new_name("trf"))
    while not (answer := await ask(person, question)).done:
        pass
    if answer.artifact is None:
        return bytes(answer.data)
    chunks: dict[int, bytes] = {}
    after = 0
    while len(chunks) < answer.artifact.chunks:
        chunk = await ask(person, DownloadChunk(sandbox=sandbox, artifact=answer.artifact.artifact, after=after))
        chunks[chunk.index], after = chunk.data, chunk.after
    return b"".join(chunks[index] for index in sorted(chunks))


async def test_sandbox_is_used_from_outside(spawner: Make, person: Any) -> None:
    """Commands run in a sandbox, large files are transferred unchanged, and its end is reported."""
    async with spawner().running():
        sandbox = await person.create(files={"given": "hello"}, env={"COLOUR": "green"})
        await person.sandbox_is(sandbox, "running")
        assert await run(person, sandbox, "/bin/sh", "-c", "cat given; echo $COLOUR; exit 3") == (3, b"hellogreen\n")
        content = os.urandom(3 * 1024 * 1024 + 5)
        await put(person, sandbox, "a/b.bin", content)
        digest = hashlib.sha256(content).hexdigest().encode()
        assert (await run(person, sandbox, "/usr/bin/sha256sum", "a/b.bin"))[1].split()[0] == digest
        assert await take(person, sandbox, "a/b.bin") == content
        listed = await ask(person, ListFiles(sandbox=sandbox, recursive=True))
        assert [entry.path for entry in listed.entries] == ["a", "a/b.bin", "given"]
        with pytest.raises(RefusedError) as refusal:
            await take(person, sandbox, "../state/joiner.creds")
        assert refusal.value.problem.code == "refused"
        await person.command(TerminateSandbox(sandbox=sandbox, reason="done with it"), sandbox)
        await person.sandbox_is(sandbox, "terminated")
        with pytest.raises(RefusedError) as refusal:
            await run(person, sandbox, "/bin/true")
        assert refusal.value.problem.code == "conflict"
        await person.all_gone()


async def test_next_attempt_gets_work_and_transcript_of_the_first(spawner: Make, person: Any) -> None:
    """The work tree and output of the first attempt are beside the second's own, and can be inspected while it runs."""
    script = """
    if [ $SANDHERD_ATTEMPT = 1 ]; then echo half > work; echo trying; exit 7; fi
    (cd $SANDHERD_PREVIOUS_DIR; cat work/work transcript) > part; mv part found
    while ! test -e enough; do sleep 0.05; done
    """
    retry = {"max_attempts": 2, "first_delay_seconds": 0, "also": ["exit_status"]}
    async with spawner().running():
        task = await person.submit(["/bin/sh", "-c", script], retry=retry)

        async def second() -> str | None:
            view = await person.try_task(task)
            return view.sandbox if view and view.attempt == 2 and view.state == "running" else None

        sandbox = await person.eventually(second)
        found = await person.eventually(lambda: _read(person, sandbox, "found"))
        assert found == b"half\ntrying\n"
        assert (await run(person, sandbox, "/usr/bin/touch", "enough"))[0] == 0
        view = await person.ended(task)
        assert (view.state, view.attempt) == ("completed", 2)
        await person.all_gone()


def _read(person: Any, sandbox: str, name: str) -> bytes:
    path = person.home / "sandboxes" / sandbox / "work" / name
    return path.read_bytes() if path.exists() else b""
