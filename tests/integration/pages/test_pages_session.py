"""The pages of a session in a real browser: live, complete after a lost connection, inert and accessible."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.async_api import Locator, Page, expect

from sandherd.client import Herd
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentFileEdited, AgentToolResult, AgentToolUse
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.nats import free_port
from sandherd.stack.postgres import PostgresServer
from tests.engines.chromium import browser
from tests.engines.own_network import own_network
from tests.integration.gateway.conftest import gateway_of, herd_context, responds
from tests.integration.operating.herds import running
from tests.integration.pages.conftest import COLOUR_RULES, RETRY, shows_at_end, violations
from tests.integration.pages.recorded_session import PROJECT, SANDBOX, RecordedWorker, publish_sandbox
from tests.patience import PATIENCE
from tests.polling import eventually

HOSTILE: Final = (
    '<img src="https://attacker.example/x" onerror="window.executed=1">'
    "<script>window.executed=1</script>[x](javascript:window.executed=1)"
    "\x1b]52;c;ZXZpbA==\x07\x1b]8;;javascript:window.executed=1\x07link\x1b]8;;\x07\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe"
)
EFFECTS: Final = """() => [window.executed ?? null,
    document.querySelectorAll("main img, main script, main iframe").length,
    [...document.querySelectorAll("main a")].filter((a) => !/^(https?|blob):/.test(a.href)).length]"""
THEMES: Final[tuple[Literal["light"], Literal["dark"]]] = ("light", "dark")
SHOWN: Final = {"?tab=monitor": "Findings", "?tab=attempts": "Attempt"}
"""The text of each view that has no text of the sandbox."""
SMALLER: Final = """(feed) => {
    feed.dispatchEvent(new Event("scroll"));
    feed.closest(".stage").style.maxHeight = `${feed.clientHeight - 200}px`; }"""
"""Makes the window of a list smaller between an event of its scroll position and the next frame."""
TABS: Final = (
    "",
    "?tab=terminal",
    "?tab=files",
    "?tab=monitor",
    "?tab=attempts",
    "?tab=raw",
    "/replay",
    "/replay?view=terminal",
)


@dataclass
class Site:
    """A browser's tab, the session that it shows, and a gateway that can be stopped and started again."""

    page: Page
    worker: RecordedWorker
    herd: Broker
    port: int
    _gateway: AsyncExitStack

    async def start(self) -> None:
        service = await self._gateway.enter_async_context(gateway_of(self.herd, gateway_port=self.port).running())
        await eventually(lambda: not service.health.problems(), "the gateway is ready")

    async def stop(self) -> None:
        await self._gateway.aclose()


@asynccontextmanager
async def opened(herd: Broker, postgres: str, home: Path) -> AsyncIterator[Site]:
    """A herd with a recorded session, and a tab that has not opened a page yet."""
    port = free_port()  # it stays free while its gateway is stopped
    async with (
        running(herd, postgres, home, isolation="none"),
        Herd.connect(herd_context(herd)) as client,
        herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus,
        own_network() as network,
        browser(network) as chromium,
        AsyncExitStack() as gateway,
    ):
        await eventually(lambda: responds(client), "the spawner responds")
        token = await client.create_token("tab", "operate")
        context = await chromium.new_context(
            base_url=f"http://127.0.0.1:{port}",
            extra_http_headers={"Authorization": f"Bearer {token.text}"},
            viewport={"width": 1280, "height": 1400},
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        site = Site(await context.new_page(), RecordedWorker(bus), herd, port, gateway)
        await site.start()
        await publish_sandbox(herd, text="Build the components of the shop")
        await site.worker.replay("long-frontend")
        yield site


@pytest.fixture
async def site(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with opened(herd, postgres, tmp_path / "home") as found:
        yield found


def numbered(first: int, last: int) -> list[AgentMessage]:
    return [AgentMessage(content=f"message {number}.", content_length=10) for number in range(first, last + 1)]


async def test_session_page_misses_nothing_and_is_inert_and_accessible(site: Site) -> None:
    """A page catches up after a loss, and sends once what could not be sent; no text of a sandbox has an effect."""
    await shows_a_loss_and_misses_nothing(site)
    await is_inert_and_accessible(site)


async def shows_a_loss_and_misses_nothing(site: Site) -> None:
    """Check that the page opens at the end and is live, catches up after a loss, and sends a held message once.

    It stays at the end when its window becomes smaller. While the gateway is stopped it shows that, and the message
    stays in the box, marked as not sent. A command to mute a rule reaches the monitor.
    """
    page = site.page
    await page.goto(f"/sandboxes/{SANDBOX}")
    await expect(page.get_by_text("40 components are built.").first).to_be_visible()
    await site.worker.publish(*numbered(1, 3))
    await expect(page.get_by_text("message 3.", exact=True)).to_be_visible()
    await page.get_by_role("feed").evaluate(SMALLER)
    await site.stop()
    await expect(page.get_by_text("Not connected")).to_be_visible()
    await site.worker.publish(*numbered(4, 30))
    await page.get_by_label("Message to the agent").fill("please stop")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.get_by_text("Not sent")).to_be_visible()
    await expect(page.get_by_label("Message to the agent")).to_have_value("please stop")
    await site.start()
    await expect(page.get_by_text("message 30.", exact=True)).to_be_visible()
    await expect(page.get_by_text("Not connected")).to_have_count(0)
    shown = await page.get_by_text("message ").filter(has_text=".").all_inner_texts()
    numbers = [int(text.split()[1].rstrip(".")) for text in shown if text.startswith("message ") and text.endswith(".")]
    assert numbers == list(range(numbers[0], 31))
    assert numbers[0] <= 3
    await eventually(lambda: _accepted(page, "Send again"), "the message is accepted")
    await expect(page.get_by_label("Message to the agent")).to_have_value("")
    await expect(page.locator(".kind-input").filter(has_text="rejected")).to_have_count(1)  # there is no worker for it
    await page.get_by_role("button", name="Monitor").click()
    await eventually(lambda: _accepted(page, "Mute for 1 h"), "the command is accepted")
    await page.get_by_role("button", name="Timeline").click()
    refused = page.locator(".kind-error").filter(has_text="refused")  # the spawner has no such sandbox
    await expect(refused.first).to_be_visible()


async def _accepted(page: Page, button: str) -> bool:
    """Whether the command of a button is accepted: a monitor that has lost its lease for a moment refuses it."""
    async with page.expect_response(lambda response: response.request.method == "POST") as waiting:
        await page.get_by_role("button", name=button).first.click()
    return (await waiting.value).status == 202


async def test_session_page_survives_broker_and_database(herd: Broker, tmp_path: Path) -> None:
    """An open page shows that the broker, and then the database, was killed, and misses nothing."""
    async with PostgresServer(tmp_path / "postgres") as database:
        await database.create_database("herd")
        async with opened(herd, database.url("herd"), tmp_path / "home") as site:
            page = site.page
            await page.goto(f"/sandboxes/{SANDBOX}")
            await expect(page.get_by_text("40 components are built.").first).to_be_visible()
            await herd.kill()
            await expect(page.get_by_text("The herd does not respond")).to_be_visible()
            await herd.start()
            await site.worker.publish(*numbered(1, 5))
            await expect(page.get_by_text("message 5.", exact=True)).to_be_visible()
            await expect(page.get_by_text("The herd does not respond")).to_have_count(0)
            await database.kill()
            await expect(page.get_by_text("The herd does not respond")).to_be_visible()
            await site.worker.publish(*numbered(6, 9))
            await expect(page.get_by_text("message 9.", exact=True)).to_be_visible()
            await page.reload()
            await expect(page.get_by_role("button", name="Retry").first).to_be_visible()
            await database.start()
            await page.reload()
            await expect(page.get_by_text("message 9.", exact=True)).to_be_visible()
            for number in range(1, 10):
                await expect(page.get_by_text(f"message {number}.", exact=True)).to_have_count(1)


async def is_inert_and_accessible(site: Site) -> None:
    """Check that a sandbox's hostile text has no effect in any view, in both themes, and that axe finds nothing."""
    page = site.page
    await site.worker.output(f"{HOSTILE}\r\n", "\x1b[1;31mfailed\x1b[0m\n")
    await site.worker.publish(
        AgentToolUse(tool=HOSTILE, tool_use_id="call-1", input={"command": HOSTILE, HOSTILE: HOSTILE}),
        AgentToolResult(tool_use_id="call-1", result=HOSTILE, is_error=True),
        AgentFileEdited(
            file_path=f"src/{HOSTILE}",
            change_type="created",
            lines_added=1,
            diff_preview=f"@@ -0,0 +1 @@\n+{HOSTILE}\n",
        ),
        AgentApprovalRequested(approval_id="appr-1", tool="Bash", input={"command": HOSTILE}, reason=HOSTILE),
        AgentMessage(content=HOSTILE, content_length=len(HOSTILE)),
    )
    foreign: list[str] = []
    own = (f"http://127.0.0.1:{site.port}/", "blob:")
    page.on("request", lambda one: None if one.url.startswith(own) else foreign.append(one.url))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    found: list[object] = []
    for tab in TABS:
        await page.goto(f"/sandboxes/{SANDBOX}{tab}")
        await expect(page.get_by_text("Build the components of the shop").first).to_be_visible()
        await _fill(page, tab)
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme)
            found += [(tab, theme, one) for one in await violations(page, *(() if theme == "light" else COLOUR_RULES))]
        assert await page.evaluate(EFFECTS) == [None, 0, 0]
    assert (found, foreign, errors) == ([], [], [])


async def _shows(page: Page, place: Locator, text: str) -> bool:
    """Whether a view shows a text."""
    await page.evaluate(RETRY)
    return await place.filter(has_text=text).count() > 0


async def _fill(page: Page, tab: str) -> None:
    """Wait until the hostile text is shown."""
    if tab.startswith("/replay"):
        await eventually(lambda: shows_at_end(page, "<script>"), "the replay is at its end")
    shown = page.get_by_role("feed") if not tab else page.locator("main")
    wanted = SHOWN.get(tab, "<script>")
    await eventually(lambda: _shows(page, shown, wanted), f"{tab} shows {wanted}")
    if not tab:
        await page.locator(".kind-call .head").last.click()
        await expect(page.locator(".details dl").first).to_be_visible()
