"""Replies of a proxy or a foreign server are reported as such, without the key."""

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sandherd.settings import Settings
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.daytona.factory import open_daytona
from spawner.runtimes.docker.factory import open_docker
from spawner.runtimes.kubernetes.factory import open_kubernetes
from spawner.runtimes.remote.factory import open_remote
from tests.patience import PATIENCE

KEY = "dtn_a0123456789secret"
CONFIG = """
apiVersion: v1
kind: Config
current-context: x
users: [{{name: u, user: {{token: {key}}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
contexts: [{{name: x, context: {{user: u, cluster: c}}}}]
"""
OPENING: dict[str, Callable[[Settings, str], Awaitable[Any]]] = {
    "docker": open_docker,
    "daytona": open_daytona,
    "kubernetes": open_kubernetes,
    "remote": open_remote,
}


def _settings(url: str, folder: Path) -> Settings:
    (folder / "config").write_text(CONFIG.format(key=KEY, url=url))
    return Settings(
        sandbox_image="image",
        docker_host=url.replace("http", "tcp", 1),
        daytona_api_key=KEY,
        daytona_api_url=url,
        remote_api_key=KEY,
        remote_api_url=url,
        kubernetes_config=folder / "config",
    )


@contextmanager
def _server(
    body: bytes, content_type: str, status: HTTPStatus, withheld: threading.Event | None = None
) -> Iterator[str]:
    """The address of a server with this response to every request; the body is sent once `withheld` is set.

    It runs in threads: a server in the test's event loop may end before it has seen a connection that it accepted.
    """

    class Same(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if withheld:
                withheld.wait(PATIENCE)
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer  # noqa: N815  # the names that the base class calls

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Same) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def _refusal(kind: str, folder: Path, body: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> str:
    """The error when the runtime is opened there."""
    with _server(body, content_type, status) as url:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(RuntimeFailedError) as caught:
                await OPENING[kind](_settings(url, folder), "herd")
    return str(caught.value)


@pytest.mark.parametrize("kind", OPENING)
@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"null", b"\x00\xff"])
async def test_reply_of_another_form_is_reported(kind: str, body: bytes, tmp_path: Path) -> None:
    """The error is the runtime's own, and not that of a parser."""
    form = "application/json" if body in {b"[]", b"null"} else "text/html"
    assert (await _refusal(kind, tmp_path, body, form)).startswith(f"{kind}: ")


async def test_response_of_another_type_is_closed(tmp_path: Path) -> None:
    """Docker's client leaves such a response open, with its connection; its garbage collection fails this test."""
    withheld = threading.Event()
    with _server(b"<html></html>", "text/html", HTTPStatus.OK, withheld) as url:
        with pytest.raises(RuntimeFailedError, match="not a Docker Engine's"):
            await open_docker(_settings(url, tmp_path), "herd")
        withheld.set()
    gc.collect()


@pytest.mark.parametrize("kind", ["daytona", "remote"])
async def test_key_repeated_in_a_reply_is_redacted(kind: str, tmp_path: Path) -> None:
    """The key is removed, wherever the reply has it."""
    answer = json.dumps({"message": f"Invalid credentials {KEY}", "statusCode": 401}).encode()
    refusal = await _refusal(kind, tmp_path, answer, "application/json", HTTPStatus.UNAUTHORIZED)
    assert "Invalid credentials" in refusal
    assert KEY not in refusal
