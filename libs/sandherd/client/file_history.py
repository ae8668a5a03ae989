"""A version of a file in a sandbox: its diff, and its content, computed from the diffs since the file's creation."""

import hashlib
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.client.unified_diff import DiffMismatchError, apply_diff
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.model import Model
from sandherd.contracts.requests import FileVersion

MAX_CONTENT_LENGTH: Final = 8 * 1024 * 1024
"""Maximum number of characters of a computed content, and of bytes of a diff that is downloaded."""


class FileContent(Model):
    """A version of a file. A sandbox wrote its texts, so they may only be shown as plain text."""

    version: FileVersion
    diff: str | None = None
    """The whole unified diff of the change; None if it was not published, is no longer stored or is too large."""
    content: str | None = None
    """The content after the change. None if the file was not created in this sandbox, is binary or deleted, if a diff
    since its creation is missing or does not apply, or if the content is too large."""
    verified: bool = False
    """Whether the SHA-256 of the content is that of its event."""


FetchDiff = Callable[[FileVersion], Awaitable[str | None]]
"""A function that returns the whole diff of a version, or None if it is not available."""


@dataclass(frozen=True)
class FileHistory:
    """The versions of one path, in their order, each with its diff or a reference to it."""

    versions: Sequence[FileVersion]
    fetch: FetchDiff

    async def at(self, number: int | None) -> FileContent:
        """A version, by default the last. Raises `HerdError` (`not_found`)."""
        version = self._version(number)
        diff = await self.fetch(version)
        content = await self._content(version)
        digest = None if content is None else hashlib.sha256(content.encode()).hexdigest()
        verified = digest is not None and digest == version.content_sha256
        if content is not None and version.content_sha256 is not None and not verified:
            content = None  # for example, the file has other line ends or characters than the diffs
        return FileContent(version=version, diff=diff, content=content, verified=verified)

    def _version(self, number: int | None) -> FileVersion:
        matching = [version for version in self.versions if number in {None, version.number}]
        if not matching:
            text = "the sandbox has not changed such a file" if number is None else f"there is no version {number}"
            remedy = "see `sandherd files SANDBOX --versions`"
            raise HerdError.of(Code.NOT_FOUND, text, field="number", remedy=remedy)
        return matching[-1]

    async def _content(self, version: FileVersion) -> str | None:
        """The content, computed from the diffs since the last creation of the file. None if it can't be computed."""
        versions = [each for each in self.versions if each.number <= version.number]
        creations = [index for index, each in enumerate(versions) if each.change_type == "created"]
        creation_index = max(creations, default=None)
        if creation_index is None or version.change_type == "deleted":
            return None
        content = ""
        for each in versions[creation_index:]:
            diff = None if each.binary or each.change_type == "renamed" else await self.fetch(each)
            if diff is None:
                return None
            try:
                content = apply_diff(content, diff)
            except DiffMismatchError:
                return None
            if len(content) > MAX_CONTENT_LENGTH:
                return None
        return content


async def diff_of(version: FileVersion, download: Callable[[ArtifactRef, io.BytesIO], Awaitable[None]]) -> str | None:
    """The whole diff of a version; `download` gets an artifact. None if it is not available."""
    if not version.diff_complete:
        return None
    if version.diff_ref is None:
        return version.diff
    if version.diff_ref.size > MAX_CONTENT_LENGTH:
        return None
    out = io.BytesIO()
    try:
        await download(version.diff_ref, out)
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        return None
    return out.getvalue().decode(errors="replace")
