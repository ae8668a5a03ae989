"""Files in the work tree of a sandbox: list, read, write."""

import tempfile
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gateway.api_server import CONNECTION
from gateway.downloads import MAX_BYTES_OF_PROJECT, FileResponse
from gateway.request_models import part_of
from gateway.routes.route_replies import FILE_RESPONSE, Name
from gateway.sessions import ReadSession, Session, WorkSession
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import FileList, FileWritten, ListFiles
from sandherd.contracts.requests.access import TreePath

router: Final = APIRouter(tags=["sandboxes"])
FileQuery: Any = part_of(ListFiles, "FileQuery", without=frozenset({"sandbox"}))
Path = Annotated[TreePath, Query()]
"""A path in the work tree of a sandbox, in the query: paths have slashes and dots."""
_TIMEOUT_SECONDS: Final = 15.0
_DOWNLOAD_SECONDS: Final = 600.0
_MAX_MEMORY_BYTES: Final = 1024 * 1024  # a larger file is in a temporary file
_MAX_FOLDER_BYTES: Final = MAX_BYTES_OF_PROJECT // 2
"""Maximum size of the archive of a folder, for which space is reserved."""
_BINARY_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/sandboxes/{sandbox}/files")
async def list_files(session: ReadSession, sandbox: Name, query: Annotated[FileQuery, Query()]) -> FileList:
    """The entries of a folder in a sandbox's work tree. For a file, its own entry."""
    request = validated(ListFiles, sandbox=sandbox, **query.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_TIMEOUT_SECONDS)


@router.get("/sandboxes/{sandbox}/files/content", response_class=Response, responses=FILE_RESPONSE)
async def download_file(session: ReadSession, request: Request, sandbox: Name, path: Path) -> Response:
    """The bytes of a file, or of a folder as a tar archive. Never show them as HTML: a sandbox wrote them."""
    limit = await _size_of(session, sandbox, path)
    with ExitStack() as stack:
        stack.enter_context(session.backend.downloads.reserve(session.caller.project, limit))
        request.scope[CONNECTION].extend(_DOWNLOAD_SECONDS)
        file = stack.enter_context(LimitedFile(limit))
        download = await session.herd.download(sandbox, path, file)
        name = "content.tar" if download.kind == "folder" else "content"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Length": str(download.size),
        }
        return FileResponse(file, stack.pop_all(), headers)


@router.put("/sandboxes/{sandbox}/files/content", openapi_extra=_BINARY_BODY)
async def upload_file(
    session: WorkSession,
    request: Request,
    sandbox: Name,
    path: Path,
    mode: Annotated[str, Query(pattern="^0?[0-7]{3}$")] = "644",
) -> FileWritten:
    """Write the body as a file in a sandbox's work tree, atomically. `mode` is octal.

    For larger files use `sandherd cp`.
    """
    return await session.herd.write(sandbox, await request.body(), path, mode=int(mode, 8))


class LimitedFile(tempfile.SpooledTemporaryFile[bytes]):
    """A temporary file that refuses more than `limit` bytes: the size that a sandbox reports may be wrong."""

    def __init__(self, limit: int) -> None:
        super().__init__(max_size=_MAX_MEMORY_BYTES)
        self._limit = limit

    def write(self, s: Any) -> int:
        """Write bytes. Raises `HerdError` (`too_large`)."""
        if self.tell() + len(s) > self._limit:
            text = f"the file has more than {self._limit} bytes"
            raise HerdError.of(Code.TOO_LARGE, text, field="path", remedy="get it with `sandherd cp`")
        return super().write(s)


async def _size_of(session: Session, sandbox: str, path: str) -> int:
    """The size of a file; for a folder, the maximum size of its archive. Raises `HerdError` if there is neither."""
    file_list = await session.herd.files(sandbox, path, limit=1)
    entry = next((item for item in file_list.entries if item.path.strip("./") == path.strip("./")), None)
    return entry.size if entry is not None and entry.kind == "file" else _MAX_FOLDER_BYTES
