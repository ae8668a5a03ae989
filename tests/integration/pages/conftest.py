"""A browser for the tests of a module, and tabs that show the pages of a gateway's double."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest_asyncio
from playwright.async_api import Browser, Page, Request

from tests.engines.chromium import browser
from tests.engines.own_network import own_network
from tests.integration.pages.examples import EXAMPLES
from tests.integration.pages.gateway_double import GatewayDouble
from tests.patience import PATIENCE

AXE: Final = Path(__file__).parents[3] / "services/gateway/pages/node_modules/axe-core/axe.min.js"
_RUN: Final = """async (rules) => (await axe.run(document, {resultTypes: ["violations"],
        ...(rules.length ? {runOnly: {type: "rule", values: rules}} : {})})).violations
    .map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map((node) => node.html).join(" ")}`)"""

COLOUR_RULES: Final = ("color-contrast", "link-in-text-block")
"""The rules of axe that read colours, which a theme changes. All other rules read the document alone."""
RETRY: Final = """() => [...document.querySelectorAll("[role=alert] button")]
    .filter((one) => one.textContent.trim() === "Retry").forEach((one) => one.click())"""
"""Makes the page read again what could not be read from a busy herd."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with own_network() as network, browser(network) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def double() -> AsyncIterator[GatewayDouble]:
    async with GatewayDouble(dict(EXAMPLES)).serving() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def tab(chromium: Browser, double: GatewayDouble) -> AsyncIterator[Page]:
    page = await new_tab(chromium, double)
    yield page
    await page.context.close()


async def new_tab(chromium: Browser, double: GatewayDouble, **options: Any) -> Page:
    """A tab without history, cache and storage."""
    context = await chromium.new_context(base_url=double.url, reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE * 1000)
    context.on("requestfailed", _log_failure)
    return await context.new_page()


def _log_failure(request: Request) -> None:
    """Log the browser's reason, which pages don't get; it is shown with a failed test."""
    logging.getLogger(__name__).warning("request failed: %s: %s", request.url, request.failure)


async def violations(page: Page, *rules: str) -> list[str]:
    """What axe finds on a page, with elements, by these rules or all.

    It is evaluated by the browser's tools, which no policy of a page prevents.
    """
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(AXE.read_text())
    found: list[str] = await page.evaluate(_RUN, rules)
    return found


async def shows_at_end(page: Page, text: str) -> bool:
    """Whether the end of a replay shows a text: while the replay is loaded, its end moves."""
    await page.evaluate(RETRY)
    await page.get_by_role("slider").press("End")
    return await page.locator("main").get_by_text(text).first.is_visible()
