"""The request to event-ingest for the versions of the files that an agent has changed."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, StringConstraints

from sandherd.contracts.events.base import ArtifactRef, Digest
from sandherd.contracts.model import Count, Model, Moment, Number
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Page, Request


class FileVersion(Model):
    """A file after one of its changes."""

    file_path: str
    """The path relative to the work tree."""
    number: Number
    """The number of the change among those of this path in this sandbox, from 1."""
    change_type: Literal["created", "modified", "deleted", "renamed"]
    previous_path: str | None = None
    time: Moment
    stream_sequence: Count
    """The stream sequence of the event."""
    turn: Count = 0
    tool_use_id: str | None = None
    binary: bool = False
    lines_added: Count = 0
    lines_removed: Count = 0
    content_sha256: Digest | None = None
    """The SHA-256 of the file's content after the change, if it was published."""
    diff: str | None = None
    """The unified diff of this change, if it was requested and is in the event."""
    diff_ref: ArtifactRef | None = None
    """The artifact with the diff, if it is too large for the event."""
    diff_complete: bool = False
    """Whether the whole diff is in `diff` or `diff_ref`; otherwise `diff` is its beginning."""


class FileVersions(Model):
    """Versions in the order of the changes, or newest first if that was requested."""

    versions: list[FileVersion]
    next_cursor: str | None = None


class ListFileVersions(Request[FileVersions], Page):
    """List the versions of the files that the agent in a sandbox has changed."""

    Answer: ClassVar[type[BaseModel]] = FileVersions
    type: ClassVar[str] = "event-ingest.file_versions"
    sandbox: SafeName
    file_path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    """Only this file."""
    diffs: bool = False
    """Whether to include the diffs."""
    newest_first: bool = False
