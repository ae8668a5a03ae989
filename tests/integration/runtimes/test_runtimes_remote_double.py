"""The double of the Runtime API: its agent server equals the real one, and the SDK's own client works with it."""

import asyncio
import io
import json
import os
import shlex
from collections.abc import AsyncIterator
from math import ceil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.doubles.remote.double import COMMAND, IMAGE, KEY, Double, Pod
from tests.doubles.remote.provider import remote
from tests.engines.agent_server import agent_server
from tests.integration.runtimes.conftest import Boxes
from tests.late_commands import ran_out_of_time
from tests.patience import PATIENCE

pytestmark = [pytest.mark.timeout(900)]
QUIET = {
    "OH_ENABLE_VSCODE": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DO_NOT_TRACK": "1",
}


@pytest.fixture(params=["small", "real"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator["Server"]:
    """An agent server in a pod of the double: first the stand-in, then the real one."""
    async with Double(real=agent_server() if request.param == "real" else None) as double:
        requested = {"image": IMAGE, "command": COMMAND, "session_id": "one", "environment": QUIET}
        pod = await double.start(requested)
        async with asyncio.timeout(PATIENCE):
            await double.until_ready(pod)
        async with aiohttp.ClientSession(f"{double.url}/sandbox/{pod.id}/") as session:
            yield Server(session, pod)


class Server:
    """Requests to an agent server."""

    def __init__(self, session: aiohttp.ClientSession, pod: Pod) -> None:
        self._session = session
        self._pod = pod

    async def ask(self, method: str, path: str, key: str | None = None, **more: Any) -> tuple[int, bytes]:
        """The status and the body of a response."""
        headers = {"X-Session-API-Key": self._pod.key if key is None else key}
        async with self._session.request(method, path, headers=headers, **more) as answer:
            return answer.status, await answer.read()

    async def bash(self, command: str, timeout: int = PATIENCE) -> dict[str, Any]:
        """The result of a command line."""
        request_body = {"command": command, "cwd": "/", "timeout": timeout}
        status, body = await self.ask("POST", "api/bash/execute_bash_command", json=request_body)
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    async def upload(self, path: str, content: bytes) -> tuple[int, bytes]:
        """Write a file."""
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(content), filename="file")
        return await self.ask("POST", "api/file/upload", params={"path": path}, data=form)


async def test_agent_server_behaves_as_the_adapter_expects(server: Server) -> None:
    """The stand-in and the real one behave alike: commands, their ends and times, files, and the key."""
    assert (await server.ask("GET", "health", key="none"))[0] == 200
    assert (await server.ask("GET", "api/file/download", key="none", params={"path": "/etc/passwd"}))[0] == 401
    ended = await server.bash("echo out; echo err >&2; pwd; exit 3")
    assert (ended["exit_code"], ended["stdout"], ended["stderr"]) == (3, "out\n/\n", "err\n")
    assert (await server.bash("kill -9 $$"))["exit_code"] == -9
    late = await ran_out_of_time(
        lambda seconds: server.bash("echo before; sleep 600", timeout=ceil(seconds)), lambda ended: ended["stdout"]
    )
    assert (late["exit_code"], late["stdout"]) == (-1, "before\n")
    assert (await server.bash("ps -o sid= -p $$; echo $$"))["stdout"].split()[0].isdigit()
    hidden = (await server.bash("env"))["stdout"]
    assert "SESSION_API_KEY" not in hidden
    assert len((await server.bash("head -c 2000000 /dev/zero | tr '\\0' x"))["stdout"]) == 2_000_000
    await _files_are_as_expected(server)


async def _files_are_as_expected(server: Server) -> None:
    path, content = "/workspace/a b/ünï\n'x", bytes(range(256)) * 5000
    assert (await server.upload(path, content))[0] == 200
    assert await server.ask("GET", "api/file/download", params={"path": path}) == (200, content)
    assert (await server.upload("/workspace/a b", b""))[0] == 400
    assert (await server.upload(f"{path}/below", b""))[0] == 400
    assert (await server.upload("relative", b""))[0] == 400
    for there, status in (("/workspace/none", 404), ("/workspace", 400), ("relative", 400)):
        assert (await server.ask("GET", "api/file/download", params={"path": there}))[0] == status, there


@pytest.mark.long  # the test above: the stand-in behaves as the real one; a box in it: test_runtimes_providers
async def test_remote_adapter_works_with_a_real_agent_server() -> None:
    """A sandbox is created, inspected, stopped, restarted, frozen and removed."""
    async with Double(real=agent_server()) as double:
        boxes = Boxes(remote(double, init_timeout=120.0))
        box = await boxes.make("echo life >> lives; echo said >&2; trap 'exit 5' TERM; while :; do sleep 0.1; done")
        result = await boxes.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives; printf '\\200\\377'; exit 9")
        assert (result.code, result.out) == (9, b"life\n\x80\xff")
        await boxes.provider.pause(box.name)
        await boxes.provider.resume(box.name)
        await boxes.provider.stop(box.name, 5)
        found = await boxes.provider.get(box.name)
        assert found is not None
        assert found.end is not None
        assert (found.end.code, found.end.reason) == (5, "said")
        await boxes.provider.start(box.name)
        found = await boxes.provider.get(box.name)
        assert found is not None
        assert (found.alive, found.runs) == (True, 2)
        await boxes.close()
        assert double.living() == []


SDK = """
import json, sys
from openhands.workspace import APIRemoteWorkspace
url, key, folder = sys.argv[1:]
with APIRemoteWorkspace(runtime_api_url=url, runtime_api_key=key, server_image=%r, session_id="of-the-sdk") as there:
    ran = there.execute_command("echo from inside; exit 4", timeout=20)
    put = there.file_upload(f"{folder}/sent", "/workspace/sent")
    got = there.file_download("/workspace/sent", f"{folder}/back")
    told = [ran.exit_code, ran.stdout, put.success, put.file_size, got.success, got.error]
    there.pause()
    there.resume()
    told.append(there._runtime_id is not None)
    print("TOLD", json.dumps(told))
"""


@pytest.mark.long
async def test_sdk_client_works_with_the_stand_in(remote_double: Double, tmp_path: Path) -> None:
    """The real APIRemoteWorkspace starts a runtime here, uses it, pauses and resumes it, and stops it."""
    python, packages = agent_server()
    remote_double.direct = True
    (tmp_path / "sent").write_bytes(b"some bytes")
    env = {**os.environ, **QUIET, "PYTHONPATH": str(packages)}
    words = [str(python), "-c", SDK % IMAGE, remote_double.url, KEY, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        *words, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"{shlex.join(words[:1])}: {out[-3000:]}"
    (request_body,) = [line.removeprefix("TOLD ") for line in out.splitlines() if line.startswith("TOLD ")]
    assert json.loads(request_body) == [4, "from inside\n", True, 10, True, None, True]
    assert (tmp_path / "back").read_bytes() == b"some bytes"
    assert {("POST", "/start"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/stop")} <= set(
        remote_double.requested
    )
    assert remote_double.living() == []
