"""Pages whose replies overtake each other, or whose clicked element moves, each in the wrong order."""

from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.integration.pages.examples import APPROVALS, EXAMPLES, TASKS, ago, task
from tests.integration.pages.gateway_double import GatewayDouble, Held
from tests.integration.pages.test_pages_documents import SANDBOX, messages, show

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/sandboxes/sbx-001"
ENDED = {**SANDBOX, "state": "terminated", "ended_at": ago(0)}
CLICK_WHEN_MOVED = """([row, button]) => ({ done: new Promise((resolve) => {
    const moved = document.querySelector(row);
    new MutationObserver((_, observer) => {
        observer.disconnect();
        const found = moved.querySelector(button);
        for (const detail of [1, 2]) found.dispatchEvent(new MouseEvent("click", { bubbles: true, detail }));
        resolve(found.textContent);
    }).observe(moved.parentElement, { childList: true });
}) })"""
"""Clicks with a pointer at the moment in which a list has changed, before anything is drawn."""

ANSWERED = """
window.answered = [];
const { json } = Response.prototype;
Response.prototype.json = async function () {
    try {
        return await json.call(this);
    } finally {
        setTimeout(() => window.answered.push(this.url)); // a task later the page has used it, and is drawn
    }
};"""
"""Records requests whose replies the page has used."""


async def watch(tab: Page) -> None:
    """Record replies, and disable the cache, with which Chromium sends a request after the reply to an equal one."""
    await tab.add_init_script(ANSWERED)
    await tab.route("**/api/**", lambda route: route.continue_())


async def released(tab: Page, double: GatewayDouble, held: Held, path: str) -> None:
    """Send the reply, and wait until the page has used all replies with this path."""
    held.released.set()
    requested = [one for one in double.requested if one.partition("?")[0] == f"/api/v1{path}"]
    await tab.wait_for_function(
        "([path, count]) => answered.filter((one) => one.split('?')[0].endsWith(path)).length >= count",
        arg=[path, len(requested)],
    )


def approvals(*found: dict[str, Any]) -> dict[str, Any]:
    return {"approvals": list(found), "next_cursor": None}


def event(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name, "time": ago(0), "source": "/s", "id": "1", "data": {}, **more}


async def test_overtaken_list_of_approvals_is_not_shown(double: GatewayDouble, tab: Page) -> None:
    """An approval that was granted meanwhile does not reappear with an older reply."""
    await watch(tab)
    held = double.hold("/approvals")
    await tab.goto("/approvals")
    await held.arrived.wait()
    double.replies["/approvals"] = approvals(APPROVALS[1])
    await double.publish(event("approval.granted"))
    await expect(tab).to_have_title("(1) Approvals · Sandherd")
    await released(tab, double, held, "/approvals")
    assert await tab.title() == "(1) Approvals · Sandherd"


async def test_overtaken_state_of_a_session_is_not_shown(double: GatewayDouble, tab: Page) -> None:
    """A sandbox that has ended is not shown as running by an older reply."""
    show(double, messages(3))
    await watch(tab)
    await tab.goto(PATH)
    facts = tab.locator(".facts")
    await expect(facts).to_contain_text("running")
    held = double.hold(PATH)
    await double.publish(event("sandbox.paused"))
    await held.arrived.wait()
    double.replies[PATH] = ENDED
    await double.publish(event("sandbox.terminated"))
    await expect(facts).to_contain_text("terminated")
    await released(tab, double, held, PATH)
    assert "terminated" in await facts.inner_text()


async def test_session_is_not_ended_by_a_reply_from_before_the_sign_in(double: GatewayDouble, tab: Page) -> None:
    """A late refusal from before the sign-in does not sign the user out."""
    await watch(tab)
    double.replies.update({"/session": 401, "/sign-in": {"oidc": False}})
    held = double.hold("/session")
    await tab.goto("/sign-in")
    await held.arrived.wait()
    double.replies.update({"/session": EXAMPLES["/session"], "POST /session": EXAMPLES["/session"]})
    await tab.get_by_label("Access token").fill("shd_demo_token")
    await tab.get_by_role("button", name="Sign in").click()
    await expect(tab.get_by_text("Add pagination").first).to_be_visible()
    await released(tab, double, held, "/session")
    assert tab.url == f"{double.url}/"


async def test_output_that_is_written_at_the_end_is_shown(double: GatewayDouble, tab: Page) -> None:
    """Output written between the last reading and the sandbox's end is read, too."""
    show(double, messages(3))
    double.replies[PATH] = ENDED
    held = double.hold(f"{PATH}/output")
    await tab.goto(f"{PATH}?tab=terminal")
    await held.arrived.wait()
    await expect(tab.locator(".facts")).to_contain_text("terminated")
    await tab.evaluate("() => new Promise((resolve) => setTimeout(resolve, 4500))")  # after two of its intervals
    chunk = {"stream_sequence": 5, "time": ago(0), "text": "the last line\r\n"}
    double.replies[f"{PATH}/output"] = {"chunks": [chunk], "next_cursor": None}
    held.released.set()
    await expect(tab.get_by_text("the last line")).to_be_visible()


async def test_click_on_a_moved_approval_decides_nothing(double: GatewayDouble, tab: Page) -> None:
    """A new approval is after those that are shown; one that moves up ignores a click for another."""
    path = "/sandboxes/sbx-002/approvals/appr-02"
    double.replies[f"POST {path}"] = {"name": "msg-1"}
    await tab.goto("/approvals")
    await expect(tab.get_by_role("heading", level=2)).to_have_text(["Bash", "Write"])
    new = {**APPROVALS[0], "approval_id": "appr-03", "tool": "Edit", "requested_at": ago(0)}
    double.replies["/approvals"] = approvals(new, *APPROVALS)
    await double.publish(event("approval.requested"))
    await expect(tab.get_by_role("heading", level=2)).to_have_text(["Bash", "Write", "Edit"])
    clicked = await tab.evaluate_handle(CLICK_WHEN_MOVED, ["li:has(h2):nth-child(2)", ".primary"])
    double.replies["/approvals"] = approvals(new, APPROVALS[1])
    await double.publish(event("approval.granted"))
    assert await clicked.evaluate("({ done }) => done") == "Grant"
    await expect(tab.get_by_role("heading", level=2)).to_have_text(["Write", "Edit"])
    await tab.get_by_role("button", name="Grant").first.click()
    await expect(tab.get_by_text("Sent: granted")).to_be_visible()
    assert double.received == [("POST", f"/api/v1{path}", {"granted": True})]


async def test_click_on_a_moved_task_cancels_nothing(double: GatewayDouble, tab: Page) -> None:
    """A new task moves the others down: a click at that moment cancels none of them."""
    double.replies["POST /tasks/task-001/cancel"] = {"name": "task-001"}
    await tab.goto("/")
    await expect(tab.get_by_label("Cancel task-001")).to_be_enabled()
    clicked = await tab.evaluate_handle(CLICK_WHEN_MOVED, ["li:has([data-row])", ".danger"])
    double.replies["/tasks"] = {"tasks": [task(8, "pending", "Another task"), *TASKS], "next_cursor": None}
    await double.publish(event("task.submitted", taskid="task-008"))
    assert await clicked.evaluate("({ done }) => done") == "Cancel"
    await tab.get_by_label("Cancel task-001").click()
    await expect(tab.get_by_label("Cancel task-001")).to_be_enabled()
    assert double.received == [("POST", "/api/v1/tasks/task-001/cancel", {})]


async def test_list_that_is_older_than_an_event_reverts_no_row(double: GatewayDouble, tab: Page) -> None:
    """A list, or its next page, from before a task's end that arrives after the event leaves the task ended."""
    await watch(tab)
    rows = [task(number, "running", f"Task {number}") for number in range(100)]
    double.replies["/tasks"] = {"tasks": rows, "next_cursor": "c"}
    held = double.hold("/tasks")
    await tab.goto("/")
    await held.arrived.wait()
    await double.publish(event("task.failed", taskid="task-001", data={"attempt": 1, "error": "tests fail"}))
    await released(tab, double, held, "/tasks")
    row = tab.get_by_role("listitem").filter(has=tab.locator("[href$='task-001'], [href$='sbx-001']"))
    await expect(row.get_by_text("failed", exact=True)).to_be_visible()
    await expect(tab.get_by_text("Task 99", exact=True)).to_be_visible()
    double.replies["/tasks"] = {"tasks": [task(200, "running", "Task 200")], "next_cursor": None}
    held = double.hold("/tasks")
    await tab.get_by_role("button", name="Show 100 more").click()
    await held.arrived.wait()
    await double.publish(event("task.completed", taskid="task-200", data={"attempt": 1}))
    await released(tab, double, held, "/tasks")
    last = tab.get_by_role("listitem").filter(has_text="Task 200")
    await expect(last.get_by_text("completed", exact=True)).to_be_visible()


async def test_list_is_extended_once(double: GatewayDouble, tab: Page) -> None:
    """Two clicks on "Show more" read one page, whose rows are shown once."""
    decided = EXAMPLES["/approvals"]["approvals"][-1]
    first = [decided | {"approval_id": f"appr-{number}"} for number in range(50)]
    double.replies["/approvals"] = {"approvals": first, "next_cursor": "c"}
    await tab.goto("/approvals?state=decided")
    await expect(tab.get_by_role("row")).to_have_count(51)
    double.replies["/approvals"] = approvals(decided | {"approval_id": "appr-99"})
    await tab.get_by_role("button", name="Show more").evaluate("(one) => { one.click(); one.click(); }")
    await expect(tab.get_by_role("row")).to_have_count(52)
    assert len([one for one in double.requested if "cursor=c" in one]) == 1


async def test_search_of_the_herd_is_that_of_the_address(double: GatewayDouble, tab: Page) -> None:
    """Typed text does not follow to another page; the field shows a search that a link has begun."""
    await tab.goto("/")
    await expect(tab.get_by_text("Add pagination").first).to_be_visible()
    await tab.get_by_role("searchbox").evaluate("""(field) => {
        field.value = "parser";
        field.dispatchEvent(new Event("input", { bubbles: true }));
        document.querySelector("a[href='/budgets']").click();
        return new Promise((resolve) => setTimeout(resolve, 300)); }""")
    await expect(tab.get_by_text("105 %")).to_be_visible()
    assert tab.url == f"{double.url}/budgets"
    await tab.get_by_role("link", name="Herd", exact=True).click()
    await tab.evaluate(
        """() => { const link = document.createElement("a"); link.id = "need"; link.href = "/?q=task-006";
            link.textContent = "a need"; document.querySelector("main").prepend(link); }"""
    )
    await tab.locator("#need").click()
    await expect(tab.get_by_role("searchbox")).to_have_value("task-006")


def loads(double: GatewayDouble) -> int:
    """How often the page of the session was loaded: its own requests are those below the API and the assets."""
    return double.requested.count(PATH)


async def failing(double: GatewayDouble, tab: Page, count: int, part: str = "SessionPage") -> None:
    """Let requests for a part of the page, which shows a session by default, fail in the first loads of the page."""

    async def answer(route: Route) -> None:
        await (route.abort("connectionreset") if loads(double) <= count else route.continue_())

    await tab.route(f"**/assets/{part}-*.js", answer)


async def test_a_page_with_a_missing_part_is_reloaded(double: GatewayDouble, tab: Page) -> None:
    """After a new release, whose files have other names, or a broken connection, no click is needed."""
    await failing(double, tab, 1)
    show(double, messages(3))
    await tab.goto(PATH)
    await expect(tab.get_by_text("message 3.", exact=True)).to_be_visible()
    assert loads(double) == 2


async def test_a_part_that_stays_missing_is_shown_as_an_error(double: GatewayDouble, tab: Page) -> None:
    """After one reload there is a button that loads the page again: it does not reload endlessly."""
    await failing(double, tab, 2)
    show(double, messages(3))
    await tab.goto(PATH)
    await expect(tab.get_by_role("alert")).to_contain_text("Failed to fetch")
    assert loads(double) == 2
    await tab.get_by_role("button", name="Retry").click()
    await expect(tab.get_by_text("message 3.", exact=True)).to_be_visible()


async def test_a_page_without_its_script_offers_to_reload(double: GatewayDouble, tab: Page) -> None:
    """If an import of the first script can't be loaded, the page shows a link that loads it again, and is not empty."""
    await failing(double, tab, 1, "live.svelte")
    show(double, messages(3))
    await tab.goto(PATH)
    await tab.get_by_role("link", name="reload it").click()
    await expect(tab.get_by_text("message 3.", exact=True)).to_be_visible()
    await expect(tab.get_by_text("The page is loading.")).to_have_count(0)
