"""The pages in Chromium, at a gateway with a long history: how soon they can be used, and how long a frame takes.

The history was published through the broker. Times of a page are its own: from the navigation until what was wanted is
on the screen. The latency of an event is from the acknowledgement of the broker until the frame that shows it is
painted, by the same clock. A frame is measured from one animation frame to the next; its baseline is the longest one of
a tab at which nothing happens, in the same run.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, CDPSession, Page

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.bus.connection import Bus
from sandherd.client import Herd
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.records import SharedAccessToken
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.stack.postgres import PostgresServer
from sandherd_worker.artifact_records import make_artifact
from spawner.main import compose as compose_spawner
from tests.bench.ingest import free_port, listening
from tests.bench.ingest import running as in_process
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.engines.chromium import browser
from tests.integration.gateway.conftest import herd_context
from tests.integration.pages.recorded_session import PROJECT, SANDBOX, RecordedWorker, publish_sandbox, publish_task

SANDBOXES: Final = 10_000
EVENTS: Final = 100_000
LATER: Final = 1_000
RATE: Final = 200
DIFF_BYTES: Final = 5_000_000
OUTPUT_BYTES: Final = 20_000_000
TOKEN: Final = f"shd_{PROJECT}_{'t' * 43}"
_LIVE: Final = "sbx-live"
_LARGE: Final = "sbx-large"
_WITHIN: Final = 600.0
_AT_ONCE: Final = 100
_SETTLED: Final = 0.5
_SCROLLED: Final = 5
_PRINTED: Final = "".join(f"\x1b[32mok\x1b[0m   test_{number} passed in 0.01 s\r\n" for number in range(1000))
_ROW: Final = "main [data-row]"
_FRAMES: Final = """() => { window.frames_ = []; let last = performance.now();
    const step = (now) => { frames_.push(now - last); last = now; requestAnimationFrame(step); };
    requestAnimationFrame((now) => { last = now; requestAnimationFrame(step); }); }"""
_LONGEST: Final = "() => Math.max(0, ...window.frames_.splice(0))"
_SCROLL: Final = """async (seconds) => { const feed = document.querySelector("[role=feed]");
    const end = performance.now() + seconds * 1000;
    while (performance.now() < end) { feed.scrollTop -= 600; await new Promise(requestAnimationFrame); } }"""
_LOADED: Final = """() => { document.querySelector("[role=feed]").scrollTop = 0;
    return !document.querySelector(".timeline [role=status]").innerText.includes("on demand"); }"""
_ANYWHERE: Final = """async (count) => { const feed = document.querySelector("[role=feed]");
    for (let one = 0; one < count; one += 1) { feed.scrollTop = feed.scrollHeight * ((one * 0.618) % 1);
        for (let frame = 0; frame < 4; frame += 1) await new Promise(requestAnimationFrame); } }"""
_WATCH: Final = r"""() => { window.painted = {}; const feed = document.querySelector("[role=feed]");
    const look = (node) => { const found = /live (\d+)\./.exec(node.textContent ?? "");
        if (!found || painted[found[1]]) return;
        painted[found[1]] = -1;
        const done = () => { painted[found[1]] = performance.timeOrigin + performance.now(); };
        requestAnimationFrame(() => setTimeout(done));
    };
    new MutationObserver((changes) => { for (const { addedNodes } of changes) addedNodes.forEach(look); })
        .observe(feed, { childList: true, subtree: true }); }"""


@dataclass
class Site:
    """A herd with a history, and a browser that is signed in."""

    broker: Broker
    client: Herd
    url: str
    chromium: Browser
    spawner: Service

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Page]:
        """A tab without a cache."""
        context = await self.chromium.new_context(
            base_url=self.url,
            extra_http_headers={"Authorization": f"Bearer {TOKEN}"},
            viewport={"width": 1280, "height": 900},
        )
        context.set_default_timeout(_WITHIN * 1000)
        try:
            yield await context.new_page()
        finally:
            await context.close()


async def measure(recorder: Recorder) -> None:
    """Measure each page in its own tabs; the history is published once."""
    async with opened() as site:
        await publish_history(site)
        for run in recorder.each("pages.herd"):
            recorder.add("pages.herd", await herd_page(site))
            recorder.begin("pages.event", run)
            recorder.add("pages.event", await live_events(site, run))
            recorder.begin("pages.session", run)
            for name, value in (await long_session(site)).items():
                recorder.add(f"pages.{name}", value, await idle_frame(site) if name == "frame" else None)
        async with site.spawner.running():
            for run in recorder.each("pages.diff"):
                recorder.add("pages.diff", await large_diff(site), await idle_frame(site))
                recorder.begin("pages.terminal", run)
                recorder.add("pages.terminal", await large_output(site), await idle_frame(site))


@asynccontextmanager
async def opened() -> AsyncIterator[Site]:
    """Broker, database, event-ingest, message-relay, and a gateway as a process.

    A spawner would end the connections of sandboxes that it does not have: it is started for artifacts only, and lists
    come from the history.
    """
    with tempfile.TemporaryDirectory(prefix="bench-pages-") as directory:
        home = Path(directory)
        async with Broker(home / "broker") as broker, PostgresServer(home / "postgres") as postgres:
            await postgres.create_database("herd")
            values: dict[str, Any] = {"home": home, "database_url": postgres.url("herd")}
            ingest = compose_ingest(broker.settings(Principal.EVENT_INGEST, **values))
            relay = compose_relay(broker.settings(Principal.MESSAGE_RELAY, **values))
            port = await free_port()
            await _store_token(broker)
            async with (
                ingest.running(),
                relay.running(),
                in_process(["-m", "gateway.main"], _environment(broker, port)),
                Herd.connect(herd_context(broker)) as client,
                browser() as chromium,
            ):
                await listening(f"http://127.0.0.1:{port}/api/v1/tasks")
                spawner = compose_spawner(broker.settings(Principal.SPAWNER, isolation="none", **values))
                yield Site(broker, client, f"http://127.0.0.1:{port}", chromium, spawner)


def _environment(broker: Broker, port: int) -> dict[str, str]:
    return {
        "NATS_URL": broker.url,
        "SANDHERD_CREDENTIALS": str(broker.settings(Principal.GATEWAY).credentials),
        "SANDHERD_GATEWAY_PORT": str(port),
        "SANDHERD_GATEWAY_REQUESTS_PER_SECOND": "100000",
        "SANDHERD_LOG_LEVEL": "error",
    }


async def _store_token(broker: Broker) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    record = SharedAccessToken(project=PROJECT, token="bench", role="operate", expires_at=expires)
    async with broker.bus(Principal.SPAWNER) as bus:
        key = f"$KV.tokens.{PROJECT}.{sha256(TOKEN.encode()).hexdigest()}"
        await bus.js.publish(key, record.model_dump_json().encode())


async def publish_history(site: Site) -> None:
    """10,000 sandboxes, a session of 100,000 events, and one with a large diff and much output."""
    async with site.broker.bus(Principal.SPAWNER) as spawner:
        for first in range(0, SANDBOXES, _AT_ONCE):
            names = [f"{number:05}" for number in range(first, first + _AT_ONCE)]
            await asyncio.gather(
                *(publish_task(spawner, f"task-{name}", f"sbx-{name}", text=f"Task {name}") for name in names)
            )
        await publish_task(spawner, "task-live", _LIVE, text="A live session")
        await publish_task(spawner, "task-large", _LARGE, text="A large diff and much output")
    await publish_sandbox(site.broker, text="A long session")
    async with site.broker.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus:
        await RecordedWorker(bus).replay("long-test-driven", count=EVENTS)
    async with site.broker.bus(Principal.WORKER, project=PROJECT, sandbox=_LARGE) as bus:
        await _publish_large(bus)
    async with site.broker.bus(Principal.WORKER, project=PROJECT, sandbox=_LIVE) as bus:
        await RecordedWorker(bus, _LIVE).publish(*_numbered(0, 100))
    await _all_stored(site.client)


async def _publish_large(bus: Bus) -> None:
    row = "+    value = compute(first, second)  # a line of usual length\n"
    lines = DIFF_BYTES // len(row)
    artifact = make_artifact(f"@@ -0,0 +1,{lines} @@\n{row * lines}".encode(), PROJECT, _LARGE)
    for record in artifact.records:
        await bus.publish(record.subject, record.payload, msg_id=record.msg_id)
    worker = RecordedWorker(bus, _LARGE)
    await worker.publish(
        AgentFileEdited(
            file_path="src/large.py",
            change_type="created",
            lines_added=lines,
            full_diff_ref=artifact.reference,
            full_diff_size=artifact.reference.size,
        )
    )
    await worker.output(*[_PRINTED] * (OUTPUT_BYTES // len(_PRINTED)))


async def _all_stored(client: Herd) -> None:
    async with asyncio.timeout(_WITHIN):
        while (await client.audit()).unstored:
            await asyncio.sleep(0.5)


async def herd_page(site: Site) -> float:
    """Milliseconds until the first 100 of all tasks are shown, and until a search has changed the address."""
    async with site.tab() as page:
        await page.goto("/", wait_until="commit")
        await page.locator(_ROW).nth(99).wait_for()
        await page.get_by_role("searchbox").fill("Task 0")
        return await _now(page)


async def large_diff(site: Site) -> float:
    """The longest frame in milliseconds while a diff of 5 MB is read, shown and scrolled."""
    async with site.tab() as page:
        await page.goto(f"/sandboxes/{_LARGE}")
        await page.get_by_role("button", name="Files", exact=True).last.wait_for()
        await page.evaluate(_FRAMES)
        await page.get_by_role("group", name="Views of the session").get_by_role("button", name="Files").click()
        diff = page.get_by_label("Changes of src/large.py")
        await diff.locator(".add").first.wait_for()
        await diff.evaluate("(window) => { window.scrollTop = window.scrollHeight / 2; }")
        await asyncio.sleep(_SETTLED)  # frames that follow
        return float(await page.evaluate(_LONGEST))


async def large_output(site: Site) -> float:
    """The longest frame in milliseconds while 20 MB of output are read, and searched for its last line."""
    async with site.tab() as page:
        await page.goto(f"/sandboxes/{_LARGE}")
        await page.evaluate(_FRAMES)
        await page.get_by_role("group", name="Views of the session").get_by_role("button", name="Terminal").click()
        lines = OUTPUT_BYTES // len(_PRINTED) * 1000
        await page.get_by_text(f"{lines:,} lines,").wait_for()
        return float(await page.evaluate(_LONGEST))


async def live_events(site: Site, run: int) -> Latency:
    """Measure from the broker's acknowledgement until the frame with the event is painted, at 200 events a second."""
    first = run * 10_000
    async with site.tab() as page, site.broker.bus(Principal.WORKER, project=PROJECT, sandbox=_LIVE) as bus:
        await page.goto(f"/sandboxes/{_LIVE}")
        await page.get_by_role("feed").wait_for()
        await page.get_by_text("live", exact=True).first.wait_for()
        await page.evaluate(_WATCH)
        accepted = await _publish_steadily(bus, first, LATER)
        await page.wait_for_function("(last) => painted[last] > 0", arg=first + LATER - 1)
        painted: dict[str, float] = await page.evaluate("painted")
    return latency_of(_delays(accepted, painted))


def _delays(accepted: dict[int, float], painted: dict[str, float]) -> list[float]:
    """The delays in seconds. What a frame shows above the visible part counts as painted with the next visible one."""
    found, at = [], 0.0
    for number in sorted(accepted, reverse=True):
        at = painted.get(str(number), at)
        found.append(at / 1000 - accepted[number])
    return found


async def _publish_steadily(bus: Bus, first: int, count: int) -> dict[int, float]:
    """Publish at a fixed rate. Returns when the broker has accepted each message."""
    accepted: dict[int, float] = {}
    worker = RecordedWorker(bus, _LIVE)
    worker.published = first

    async def publish(number: int) -> None:
        await worker.publish(*_numbered(number, 1))
        accepted[number] = time.time()

    begun, publishing = time.perf_counter(), []
    for place in range(count):
        await asyncio.sleep(max(0.0, begun + place / RATE - time.perf_counter()))
        publishing.append(asyncio.create_task(publish(first + place)))
    await asyncio.gather(*publishing)
    return accepted


async def long_session(site: Site) -> dict[str, float]:
    """Milliseconds until the end is shown, the longest frame while it is scrolled, and MiB when all is loaded."""
    async with site.tab() as page:
        await page.goto(f"/sandboxes/{SANDBOX}", wait_until="commit")
        await page.locator("[role=feed] .head").first.wait_for()
        opened_after = await _now(page)
        await page.get_by_text("live", exact=True).first.wait_for()
        await page.evaluate(_FRAMES)
        await page.evaluate(_SCROLL, _SCROLLED)
        while not await page.evaluate(_LOADED):
            await asyncio.sleep(0.1)  # a page of the history is read
        longest = await page.evaluate(_LONGEST)
        await page.evaluate(_ANYWHERE, 100)
        longest = max(longest, await page.evaluate(_LONGEST))
        session = await page.context.new_cdp_session(page)
        return {"session": opened_after, "frame": float(longest), "memory": await _heap(session)}


async def idle_frame(site: Site) -> float:
    """The longest frame in milliseconds of a small page at which nothing happens: the machine's part in others."""
    async with site.tab() as page:
        await page.goto("/budgets")
        await page.get_by_role("heading", name="Budgets").wait_for()
        await page.evaluate(_FRAMES)
        await asyncio.sleep(_SCROLLED)  # nothing happens meanwhile
        return float(await page.evaluate(_LONGEST))


async def _heap(session: CDPSession) -> float:
    await session.send("HeapProfiler.collectGarbage")
    used: dict[str, Any] = await session.send("Runtime.getHeapUsage")
    return float(used["usedSize"]) / 1024 / 1024


async def _now(page: Page) -> float:
    return float(await page.evaluate("performance.now()"))


def _numbered(first: int, count: int) -> list[AgentMessage]:
    return [AgentMessage(content=f"live {number}.", content_length=10) for number in range(first, first + count)]
