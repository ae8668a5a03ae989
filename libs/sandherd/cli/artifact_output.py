"""Lists the artifacts that events refer to, and writes an artifact to a file or to standard output."""

import codecs
import tempfile
from pathlib import Path
from typing import IO, Any, Final

from sandherd.cli.file_copy import ProgressBar, replace_file, show_result
from sandherd.cli.name_prefixes import full_name, kind_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.client.artifacts import EventArtifact
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import may_write_exactly, write_exactly, write_text
from sandherd.contracts.errors import Code

HEADER: Final = ("NAME", Column("KIND", cut=True), "SIZE", "EVENT", Column("FIELD", rank=1, cut=True), "TIME")
STANDARD_OUTPUT: Final = "-"
_CHUNK_BYTES: Final = 1 << 20


async def show_list(herd: Herd, name: str, output: Format) -> int:
    """List the artifacts in the events of a task or sandbox. Raises `HerdError` if there is no such task or sandbox."""
    owner = await _owner_argument(herd, name)
    artifacts = [artifact async for artifact in herd.artifacts(**owner)]
    if not artifacts:
        # raises HerdError if the task or sandbox is unknown
        await (herd.task(owner["task"]) if "task" in owner else herd.sandbox(owner["sandbox"]))
    rows: list[list[object]] = [
        [artifact.name, artifact.kind, artifact.size, artifact.event, artifact.field, artifact.time]
        for artifact in artifacts
    ]
    console.print_list(output, {"artifacts": [_document(artifact) for artifact in artifacts]}, HEADER, rows)
    return 0


async def write_artifact(herd: Herd, name: str, target: str, owner: str | None) -> int:
    """Write the artifact of this name to a file, or to standard output if `target` is `-`. Raises `HerdError`."""
    artifact = await herd.find_artifact(name, **({} if owner is None else await _owner_argument(herd, owner)))
    if target == STANDARD_OUTPUT:
        with tempfile.TemporaryFile() as out, ProgressBar(name) as bar:
            await herd.artifact(artifact.reference, out, on_progress=bar.move)
            _show(artifact, out)
        return 0
    path = Path(target)
    if not path.absolute().parent.is_dir():
        raise _invalid(f"{path.parent}: there is no such folder", "create it first")
    with (
        tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".sandherd-") as file,
        ProgressBar(name) as bar,
    ):
        await herd.artifact(artifact.reference, file.file, on_progress=bar.move)
        replace_file(file, path, 0o644)
    return show_result(Format.TABLE, target, artifact.size, artifact.reference.sha256)


async def _owner_argument(herd: Herd, name: str) -> dict[str, Any]:
    kind = kind_of(name)
    return {kind: await full_name(herd, name, kind)}


def _document(event_artifact: EventArtifact) -> dict[str, Any]:
    """The artifact as JSON, without the fields that are in its reference as well."""
    return event_artifact.model_dump(mode="json", exclude={"reference": {"artifact", "size"}})


def _show(event_artifact: EventArtifact, content: IO[bytes]) -> None:
    """Write the content: to a terminal without control characters, else unchanged.

    Raises `HerdError` for binary content on a terminal.
    """
    if may_write_exactly():
        while data := content.read(_CHUNK_BYTES):
            write_exactly(data)
        return
    if not _is_text(content):
        raise _invalid(
            f"{event_artifact.name} is not text ({event_artifact.kind}); a terminal can't show it",
            "write it to a file with -o FILE",
        )
    reader = codecs.getreader("utf-8")(content)
    while text := reader.read(_CHUNK_BYTES):
        write_text(text, end="")
    write_text()


def _is_text(content: IO[bytes]) -> bool:
    """Whether the content is UTF-8 without a zero byte. The file is at its beginning afterwards."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while data := content.read(_CHUNK_BYTES):
            decoder.decode(data)
            if b"\0" in data:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    finally:
        content.seek(0)
    return True


def _invalid(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="output", remedy=remedy)
