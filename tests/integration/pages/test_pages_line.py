"""The pages of a real herd in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.engines.chromium import browser
from tests.integration.gateway.conftest import herd_context, responds, served
from tests.integration.operating.herds import running
from tests.patience import PATIENCE
from tests.polling import eventually


@pytest.fixture
async def page(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[Page]:
    """A tab whose requests carry a token."""
    port_file = tmp_path / "api.port"
    async with (
        running(herd, postgres, tmp_path / "home", isolation="none", gateway_port_file=port_file),
        Herd.connect(herd_context(herd)) as client,
        browser() as chromium,
    ):
        await eventually(lambda: responds(client), "the spawner responds")
        token = await client.create_token("tab", "operate")
        headers = {"Authorization": f"Bearer {token.text}"}
        context = await chromium.new_context(base_url=await served(port_file), extra_http_headers=headers)
        context.set_default_timeout(PATIENCE * 1000)
        yield await context.new_page()


async def test_herd_page_is_served_and_live(page: Page) -> None:
    """The gateway serves the pages; the first one is live, and its policy refuses nothing of it."""
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    await page.goto("/")
    await expect(page.get_by_role("heading", name="Herd")).to_be_visible()
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    assert [text for text in refused if "Content Security Policy" in text] == []
