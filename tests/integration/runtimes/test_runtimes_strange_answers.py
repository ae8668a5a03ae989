"""What answers is no engine, no cluster and no service, but a proxy or somebody else: that is said, and no key is."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sandherd.settings import Settings
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.daytona.opening import open_daytona
from spawner.runtimes.docker.opening import open_docker
from spawner.runtimes.kubernetes.opening import open_kubernetes
from spawner.runtimes.remote.opening import open_remote
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


async def _told(kind: str, folder: Path, answer: web.Response) -> str:
    """What is said of it when the runtime is opened there."""
    app = web.Application()

    async def same(_request: web.Request) -> web.Response:
        return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type)

    app.router.add_route("*", "/{path:.*}", same)
    async with TestServer(app) as server, asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeFailedError) as caught:
            await OPENING[kind](_settings(str(server.make_url("")).rstrip("/"), folder), "herd")
    return str(caught.value)


@pytest.mark.parametrize("kind", OPENING)
@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"null", b"\x00\xff"])
async def test_what_is_no_answer_is_said_to_be_none(kind: str, body: bytes, tmp_path: Path) -> None:
    """In the runtime's own words, and not in those of whoever stumbled over it."""
    form = "application/json" if body in {b"[]", b"null"} else "text/html"
    assert (await _told(kind, tmp_path, web.Response(body=body, content_type=form))).startswith(f"{kind}: ")


@pytest.mark.parametrize("kind", ["daytona", "remote"])
async def test_a_key_that_is_repeated_is_not_told(kind: str, tmp_path: Path) -> None:
    """Wherever it stands in the answer."""
    answer = web.json_response({"message": f"Invalid credentials {KEY}", "statusCode": 401}, status=401)
    told = await _told(kind, tmp_path, answer)
    assert "Invalid credentials" in told
    assert KEY not in told
