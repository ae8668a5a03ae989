"""The manifest of a day in the archive: its files with their counts and digests. Pure."""

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.contracts.model import Count, Moment
from sandherd.contracts.names import SafeName

MANIFEST: Final = "manifest.json"
"""The name of a day's manifest. It is written last: a file that it does not list is not part of the archive."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ArchivedFile(BaseModel):
    """A file with the events of one project and day. Events that came later are in further files."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\.[0-9a-f]{8}\.parquet$")]
    project: SafeName
    events: Count
    bytes: Count
    sha256: Digest
    """The hash of the file."""
    events_sha256: Digest
    """The hash of the values of all columns, independent of the file's format."""
    archived_at: Moment


class Manifest(BaseModel):
    """The files of one day."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    day: date
    files: Annotated[tuple[ArchivedFile, ...], Field(max_length=100_000)] = ()

    def of(self, project: str | None) -> tuple[ArchivedFile, ...]:
        """The files of a project, or of all projects (None)."""
        return tuple(file for file in self.files if project in (None, file.project))

    def with_files(self, files: Iterable[ArchivedFile]) -> "Manifest":
        """The manifest with further files."""
        return self.model_copy(update={"files": (*self.files, *files)})

    def to_json(self) -> bytes:
        """The manifest as the JSON document that is stored."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def read_manifest(day: date, document: bytes | None) -> Manifest:
    """The manifest in this document; an empty manifest if the document is None.

    Raises `StorageError` if the document is invalid, or the manifest of another day.
    """
    if document is None:
        return Manifest(day=day)
    try:
        manifest = Manifest.model_validate_json(document)
    except ValidationError as error:
        text = f"the manifest of {day} is invalid: {error.errors(include_url=False, include_input=False)[0]['msg']}"
        raise StorageError(StorageFault.INVALID, text) from error
    if manifest.day != day:
        raise StorageError(
            StorageFault.INVALID, f"the file of the manifest of {day} contains the manifest of {manifest.day}"
        )
    return manifest
