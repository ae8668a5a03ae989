"""Files into a box, and what a command has said out of it."""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final
from uuid import uuid4

from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.boxes.provider import Command, File, ProviderError, ProviderFault
from spawner.runtimes.remote import scripts
from spawner.runtimes.remote.calls import AgentServer
from spawner.runtimes.remote.scripts import RUN, SHORT, Outcome

_AT_ONCE: Final = 64
"""So many files are put in their places by one command."""


async def place(server: AgentServer, files: Collection[File]) -> None:
    """Upload files to a folder of our own, and put each in its place when it is whole."""
    for file in files:
        _check(file.path)
    listed = list(files)
    for first in range(0, len(listed), _AT_ONCE):
        some, folder = listed[first : first + _AT_ONCE], f"{RUN}/put-{uuid4().hex}"
        for number, file in enumerate(some):
            await server.upload(f"{folder}/{number}", file.content)
        await server.control(scripts.place(folder, some))


async def fetch(server: AgentServer, path: str, limit: int) -> bytes:
    """A file's content; the agent server itself would follow links, wherever its agent has led them."""
    if (await server.bash(scripts.plain(path))).exit_code == scripts.LINKED:
        raise ProviderError(ProviderFault.REFUSED, f"{path} leads over a link")
    return await server.download(path, limit)


def _check(path: str) -> None:
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        told = f"remote: {path} does not lie below {ROOT}, where a box may be written to"
        raise ProviderError(ProviderFault.REFUSED, told)


async def short_and_long(server: AgentServer, folder: str, text: str | None, given: Command) -> Outcome:
    """How a command ended, with its output: from what it has printed, or fetched where that is too long for it."""
    outcome = Outcome.read(text or await server.control(scripts.command("result", folder, str(SHORT))))
    if outcome.whole:
        return outcome
    most = given.most_output + 1
    out = await server.download(f"{folder}/out", most)
    err = await server.download(f"{folder}/err", most)
    await server.control(scripts.command("forget", folder))
    return Outcome(outcome.code, outcome.size, out, err)
