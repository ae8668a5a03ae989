"""Compares the whole API with its OpenAPI document: Schemathesis, on a real gateway with the services behind it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.application import document
from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import Api, responds, served
from tests.integration.operating.herds import running
from tests.polling import eventually

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth"
)
ENDLESS = ("stream_events", "stream_sandbox")
"""Streams of events have no end."""


LARGE = ("submit_task", "create_sandbox", "set_schedule", "start_command")
"""Operations whose bodies have thousands of boundary cases, which take very long: they are only fuzzed."""
_CONFIGURATION = f"""
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 409, 412, 413, 422]

[[operations]]
include-operation-id = {json.dumps(LARGE)}
phases.coverage.enabled = false

[[operations]]
include-method = "GET"
phases.coverage.enabled = false
"""
"""A body may also be too large, and a name may be in use. Boundary cases of reading operations take minutes as well."""


@pytest.fixture
async def unlimited(herd: Broker, postgres: str, tmp_path: Path, client: Herd) -> AsyncIterator[Api]:
    """The API without a rate limit, which would only refuse the requests."""
    port_file = tmp_path / "api.port"
    settings: dict[str, Any] = {"gateway_port_file": port_file, "gateway_requests_per_second": 1_000_000.0}
    async with (
        running(herd, postgres, tmp_path / "home", isolation="none", **settings),
        aiohttp.ClientSession() as http,
    ):
        await eventually(lambda: responds(client), "the spawner responds")
        token = (await client.create_token("all", "operate")).text
        yield Api(await served(port_file), http, token)


@pytest.mark.timeout(900)
@pytest.mark.long  # thousands of requests take minutes; test_gateway_access also tests each kind of refusal
async def test_api_does_what_its_document_says(unlimited: Api, tmp_path: Path) -> None:
    """Whatever is sent, no response is a server error, undocumented, or different from its description."""
    schema = tmp_path / "openapi.json"
    schema.write_text(json.dumps(document()))
    (tmp_path / "schemathesis.toml").write_text(_CONFIGURATION)
    command = Path(sys.executable).with_name("schemathesis")
    words = [str(command), "run", str(schema), "--url", unlimited.url, "--checks", CHECKS]
    words += ["--header", f"Authorization: Bearer {unlimited.token}", "--max-examples", "5", "--seed", "16"]
    words += ["--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all", "--no-color"]
    for operation in ENDLESS:
        words += ["--exclude-operation-id", operation]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = await asyncio.to_thread(
        subprocess.run, words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
