import os
import asyncio
from pathlib import Path

from sandherd.client import Herd
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentFileEdited, AgentToolResult, AgentToolUse
from sandherd.contracts.subjects import Principal
from tests.engines.chromium import browser
from tests.integration.gateway.conftest import herd_context, responds, served
from tests.integration.operating.herds import running
from tests.integration.pages.recorded_session import PROJECT, SANDBOX, RecordedWorker, publish_sandbox
from tests.polling import eventually


from contextlib import asynccontextmanager, AsyncExitStack
import tests.integration.operating.herds as H
@asynccontextmanager
async def some(herd, postgres, home, port_file):
    keep = dict(H.COMPOSE)
    if os.environ.get("LOOK") == "perf":
        for p in (Principal.MONITOR, Principal.MESSAGE_RELAY): H.COMPOSE.pop(p)
    async with running(herd, postgres, home, isolation="none", gateway_port_file=port_file) as found:
        yield found

async def test_look(herd, postgres, tmp_path):
    port_file = tmp_path / "api.port"
    async with (
        some(herd, postgres, tmp_path / "home", port_file),
        Herd.connect(herd_context(herd)) as client,
        browser() as chromium,
        herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus,
    ):
        await eventually(lambda: responds(client), "the spawner responds")
        await publish_sandbox(herd, text="Add a settings page with tests, and make the build pass")
        worker = RecordedWorker(bus)
        await worker.replay("long-frontend")
        await worker.output(
            "\x1b[32mok\x1b[0m building\r\n", *(f"line {n} \x1b[1;31merror\x1b[0m in src/a{n}.ts\n" for n in range(300))
        )
        await worker.say(
            AgentFileEdited(file_path="x.bin", change_type="created", binary=True),
            AgentToolUse(tool="Bash", tool_use_id="t1", input={"command": "pytest -q"}),
            AgentToolResult(
                tool_use_id="t1", result="E   AssertionError: 3 != 4\n2 failed", is_error=True, outcome="failed"
            ),
            AgentApprovalRequested(
                approval_id="appr-1",
                tool="Bash",
                input={"command": "npm publish"},
                reason="publishes a package",
                turn=3,
            ),
            AgentMessage(content="<img src=x onerror=alert(1)> I wait for the approval.", content_length=3),
        )
        token = await client.create_token("tab", "operate")
        headers = {"Authorization": f"Bearer {token.text}"}
        context = await chromium.new_context(
            base_url=await served(port_file), extra_http_headers=headers, viewport={"width": 1280, "height": 800}
        )
        page = await context.new_page()
        logs = []
        page.on("console", lambda m: logs.append(m.text))
        page.on("pageerror", lambda e: logs.append("ERR " + str(e)))
        out = Path("/tmp/w/session-shots")
        out.mkdir(exist_ok=True)
        script = Path("/tmp/w/session-" + os.environ.get("LOOK", "look") + ".py").read_text()
        scope = dict(
            page=page,
            out=out,
            context=context,
            worker=worker,
            herd=herd,
            client=client,
            asyncio=asyncio,
            SANDBOX=SANDBOX, eventually_stored=lambda: __import__('tests.stored_history', fromlist=['x']).all_stored(client),
        )
        exec("async def go():\n" + "\n".join("    " + l for l in script.splitlines()), scope)
        try:
            await scope["go"]()
        finally:
            print("\n".join(logs[:40]))
