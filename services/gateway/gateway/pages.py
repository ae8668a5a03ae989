"""The pages as built files, which a browser loads from the gateway itself. They contain no data of a herd.

`services/gateway/pages` has their sources; `make install` and the build of the wheel write `static` from them.
"""

from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.problems import problem_of, problem_response
from sandherd.contracts.errors import Code, Problem

STATIC: Final = Path(__file__).parent / "static"
_ASSETS: Final = "/assets/"
_INDEX: Final = "/index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".wasm": "application/wasm",
    ".md": "text/plain; charset=utf-8",
}


def is_page(path: str) -> bool:
    """Whether a path is that of a page, which needs no token: every path except `/healthz` and those of the API."""
    return not path.startswith("/api/") and path not in {"/api", "/healthz"}


class StaticPages:
    """The built files of a folder. Browsers may cache assets forever, as their names contain a hash of the content."""

    def __init__(self, folder: Path = STATIC) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        self._files = {f"/{path.relative_to(folder).as_posix()}": path for path in files}

    def response(self, method: str, path: str, headers: Headers) -> Response:
        """The file at a path, or else the index page, which shows the object that the path names."""
        if method not in {"GET", "HEAD"}:
            text = "a page can only be read"
            refusal = problem_of(Code.REFUSED, text, remedy="the API is below /api/v1")
            return problem_response(refusal, 405, {"Allow": "GET, HEAD"})
        name = path if path in self._files else _INDEX
        if name not in self._files or (name == _INDEX and path.startswith(_ASSETS)):
            return problem_response(self._missing_problem(path), 404)
        return self._file(name, accepts_gzip="gzip" in headers.get("accept-encoding", ""))

    def _missing_problem(self, path: str) -> Problem:
        if _INDEX in self._files:
            return problem_of(Code.NOT_FOUND, f"there is no file {path[:100]}", remedy="reload the page")
        return problem_of(
            Code.NOT_FOUND, "the pages are not built", remedy="run `make install`, then restart the gateway"
        )

    def _file(self, name: str, *, accepts_gzip: bool) -> Response:
        compressed_name = f"{name}.gz"
        is_compressed = accepts_gzip and compressed_name in self._files
        headers = {"Cache-Control": "public, max-age=31536000, immutable" if name.startswith(_ASSETS) else "no-cache"}
        if compressed_name in self._files:
            headers["Vary"] = "Accept-Encoding"
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        content = self._files[compressed_name if is_compressed else name].read_bytes()
        return Response(content, headers=headers, media_type=_TYPES.get(Path(name).suffix, "application/octet-stream"))
