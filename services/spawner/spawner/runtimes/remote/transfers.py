"""Transfers files into a box, and files and command output out of it."""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final
from uuid import uuid4

from spawner.runtimes.boxes.box_files import ROOT
from spawner.runtimes.boxes.provider import Command, File, ProviderError, ProviderFault
from spawner.runtimes.remote import scripts
from spawner.runtimes.remote.api_clients import AgentServer
from spawner.runtimes.remote.scripts import RUN, SHORT, CommandOutcome

_MAX_FILES_PER_COMMAND: Final = 64
"""The maximum number of files that one command moves to their destinations."""


async def upload_files(server: AgentServer, files: Collection[File]) -> None:
    """Upload files to a temporary directory, then move each to its destination when it is complete."""
    for file in files:
        _check(file.path)
    all_files = list(files)
    for first in range(0, len(all_files), _MAX_FILES_PER_COMMAND):
        batch, folder = all_files[first : first + _MAX_FILES_PER_COMMAND], f"{RUN}/put-{uuid4().hex}"
        for number, file in enumerate(batch):
            await server.upload(f"{folder}/{number}", file.content)
        await server.control(scripts.move_uploads(folder, batch))


async def fetch(server: AgentServer, path: str, limit: int) -> bytes:
    """Return a file's content. Links are refused, because the agent server would follow them to any file."""
    if (await server.bash(scripts.refuse_link(path))).exit_code == scripts.LINKED:
        raise ProviderError(ProviderFault.REFUSED, f"{path} contains a symbolic link")
    return await server.download(path, limit)


def _check(path: str) -> None:
    absolute = PurePosixPath(path)
    if not absolute.is_relative_to(ROOT) or ".." in absolute.parts:
        message = f"remote: {path} is not below {ROOT}, the writable directory of a box"
        raise ProviderError(ProviderFault.REFUSED, message)


async def command_outcome(server: AgentServer, folder: str, text: str | None, command: Command) -> CommandOutcome:
    """How a command ended, with its output, which is downloaded if it is too long for a reply.

    `text`: the report of box.sh; None: it is requested.
    """
    outcome = CommandOutcome.read(text or await server.control(scripts.command_line("result", folder, str(SHORT))))
    if outcome.is_complete:
        return outcome
    limit = command.max_output + 1
    out = await server.download(f"{folder}/out", limit)
    err = await server.download(f"{folder}/err", limit)
    await server.control(scripts.command_line("delete_output", folder))
    return CommandOutcome(outcome.code, outcome.size, out, err)
