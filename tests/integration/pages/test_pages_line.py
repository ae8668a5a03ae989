"""The pages of a real herd in a real browser."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.engines.chromium import browser
from tests.engines.own_network import own_network
from tests.integration.gateway.conftest import herd_context, responds, served
from tests.integration.operating.herds import running
from tests.patience import PATIENCE
from tests.polling import eventually


@pytest.fixture
async def client(herd: Broker) -> AsyncIterator[Herd]:
    async with Herd.connect(herd_context(herd)) as connected:
        yield connected


@pytest.fixture
async def page(herd: Broker, postgres: str, client: Herd, tmp_path: Path) -> AsyncIterator[Page]:
    """A tab at the gateway of a herd."""
    port_file = tmp_path / "api.port"
    async with (
        running(herd, postgres, tmp_path / "home", isolation="none", gateway_port_file=port_file),
        own_network() as network,
        browser(network) as chromium,
    ):
        await eventually(lambda: responds(client), "the spawner responds")
        context = await chromium.new_context(base_url=await served(port_file))
        context.set_default_timeout(PATIENCE * 1000)
        yield await context.new_page()


async def test_task_from_its_creation_to_a_reviewed_diff(page: Page, client: Herd) -> None:
    """A user signs in by a token, submits a task by the form, sees it complete, and reviews its diff, without the CLI.

    No page is reloaded. The session's cookie is accepted at the loopback without TLS, no script can read it, and it
    ends at once.
    """
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    token = await client.create_token("tab", "work")
    await page.goto("/new")
    await page.get_by_label("Access token").fill(token.text)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label("Task", exact=True).fill("Count to three")
    await page.get_by_label("Harness").select_option("command")
    await page.get_by_label("Program").fill("seq 3 | tee numbers.txt")
    await page.get_by_role("button", name="Submit").click()
    row = page.get_by_role("listitem").filter(has_text="Count to three")
    await expect(row).to_contain_text("completed")
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Ended").click()
    await row.get_by_role("link", name="Count to three").click()
    await expect(page).to_have_url(re.compile(r"/sandboxes/sbx-[a-z0-9]+$"))
    await page.get_by_role("group", name="Views of the session").get_by_role("button", name="Files").click()
    await expect(page.get_by_role("heading", name="numbers.txt")).to_be_visible()
    diff = page.get_by_label("Changes of numbers.txt")
    await expect(diff.locator(".add")).to_have_text([re.compile(rf"added {number}$") for number in (1, 2, 3)])
    assert await page.evaluate("() => document.cookie") == ""
    assert [text for text in refused if "Content Security Policy" in text] == []
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Access token")).to_be_visible()
    await page.goto("/approvals")
    await expect(page).to_have_url(re.compile(r"/sign-in\?next=%2Fapprovals$"))
