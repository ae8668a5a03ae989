"""Each page with and without data, while it loads, and after errors; on phones, and for axe."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.pages.conftest import COLOUR_RULES, new_tab, violations
from tests.integration.pages.examples import EMPTY, EXAMPLES, SPEC, TASKS
from tests.integration.pages.gateway_double import GatewayDouble
from tests.integration.pages.pictures import CHANGED, check_picture, differences, pictured_tab
from tests.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHOWN = {
    "/": "Add pagination to the search endpoint",
    "/new?from=task-006": "All values of task-006",
    "/approvals": "alembic upgrade head",
    "/approvals?state=decided": "granted",
    "/conductor": "app/models.py",
    "/budgets": "105 %",
    "/operations": "the message is no JSON",
    "/sign-in": "Access token",
    "/tasks/task-004": "task-001 has to complete first",
    "/search?q=pagination": "the search endpoint",
    "/usage": "unmetered",
    "/compare?first=sbx-001&second=sbx-002": "app/models.py",
}
"""A text of each page once it has loaded."""
WITHOUT = {
    "/": "No task is running or queued",
    "/approvals": "No approval is pending",
    "/conductor": "No sandbox is running",
    "/budgets": "There are no budgets",
    "/operations": "There are no dead letters",
    "/search?q=x": "Nothing in the history matches",
    "/usage": "Nothing was used in this time",
}
CODE = f"shc_demo_{'c' * 43}"
HOSTILE = (
    "<img src=/evil.png onerror=window.evil=1><script>window.evil=1</script><b>x</b>"
    "\"'><svg onload=window.evil=1> [a](javascript:window.evil=1) javascript:window.evil=1 \u202e\u0007"
)


async def open_page(page: Page, address: str, text: str) -> None:
    """Open a page, and wait until it shows a text."""
    await page.goto(address)
    await expect(page.get_by_text(text).first).to_be_visible()


async def test_pages_have_no_violation_and_fit_a_phone(chromium: Browser, double: GatewayDouble) -> None:
    """Axe finds nothing on any page in any theme, and none has to be scrolled sideways at 360 px."""
    page = await new_tab(chromium, double, viewport={"width": 360, "height": 740})
    await page.add_init_script("localStorage.setItem('sandherd.theme', 'light')")
    for address, text in SHOWN.items():
        await open_page(page, address, text)
        for theme in ("light", "dark", "contrast"):
            await page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)
            found = await violations(page, *(() if theme == "light" else COLOUR_RULES))
            assert found == [], (address, theme)
            width = await page.evaluate("() => document.documentElement.scrollWidth")
            assert width <= 360, (address, theme)
    await page.context.close()


async def test_herd_and_approvals_look_as_in_their_pictures(chromium: Browser, double: GatewayDouble) -> None:
    """README and docs show the pages as they are; a missing entry of the navigation is a difference."""
    page = await pictured_tab(chromium, double)
    await open_page(page, "/", SHOWN["/"])
    await check_picture(page, "herd.png")
    await page.get_by_role("navigation").get_by_role("listitem").nth(3).evaluate("(entry) => entry.remove()")
    assert max((await differences(page, "herd.png")).values()) >= CHANGED
    await open_page(page, "/approvals", SHOWN["/approvals"])
    await check_picture(page, "approvals.png", "docs/gateway.md")
    await page.context.close()


async def test_pages_without_data_and_after_errors(double: GatewayDouble, tab: Page) -> None:
    """Each page shows that there is no data, and after an error what failed and how to retry; axe finds nothing."""
    double.replies.update(EMPTY)
    for address, text in WITHOUT.items():
        await open_page(tab, address, text)
        assert await violations(tab) == [], address
    double.replies.update({path: 503 for path in EXAMPLES if path != "/session"})
    for address in (*WITHOUT, "/new", "/approvals?state=decided"):
        await open_page(tab, address, "the test refuses this")
        assert await violations(tab) == [], address
    double.replies.update(EXAMPLES)
    await tab.goto("/approvals?state=decided")
    double.slow.clear()
    await tab.goto("/budgets")
    await expect(tab.get_by_role("status", name="loading").first).to_be_visible()
    assert await violations(tab) == []
    double.slow.set()
    await expect(tab.get_by_text("105 %")).to_be_visible()


async def test_hostile_text_is_shown_and_nothing_else(double: GatewayDouble, tab: Page) -> None:
    """Texts of agents in every place of every page cause no element, link, request or script."""
    double.replies.update({path: hostile(reply) for path, reply in EXAMPLES.items() if path != "/session"})
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    for address in SHOWN:
        await tab.goto(address)
        if address not in {"/sign-in", "/new?from=task-006", "/budgets", "/approvals?state=decided"}:
            await expect(tab.get_by_text("<img src=/evil.png").first).to_be_visible()
        found = await tab.evaluate(
            """() => [window.evil,
                document.querySelectorAll('main img, main script, main b, main svg[onload], iframe').length,
                [...document.querySelectorAll('a')].filter((link) => !/^https?:/.test(link.protocol)).length]"""
        )
        assert found == [None, 0, 0], address
        assert "\u202e" not in await tab.inner_text("body"), address
    assert [url for url in requests if not url.startswith(double.url) or "evil.png" in url.split("?")[0]] == []


def hostile(reply: Any) -> Any:
    """The same document with hostile texts in place of what an agent or a task may contain."""
    free = {"text", "error", "tool", "reason", "command", "description", "content", "message", "problem", "waits_for",
            "branch", "payload", "found", "file_path", "decided_by", "task_text", "status", "snippet",
            "group"}  # fmt: skip
    if isinstance(reply, dict):
        return {
            name: HOSTILE if name in free and isinstance(value, str) and value != "waiting" else hostile(value)
            for name, value in reply.items()
        }
    if isinstance(reply, list):
        return [hostile(one) if not isinstance(one, str) else HOSTILE for one in reply]
    return reply


async def test_herd_page_follows_events_and_reconnects(double: GatewayDouble, tab: Page) -> None:
    """A row changes with its event; a lost connection is shown, reconnects by itself, and the state is read again."""
    await open_page(tab, "/", "Add pagination")
    row = tab.get_by_role("listitem").filter(has=tab.locator("[data-row]"), has_text="Make the import")
    await expect(row).to_contain_text("running")
    ended = {**TASKS[1], "state": "failed", "error": "out of memory"}  # the page reads the list again a moment later
    double.replies["/tasks"] = EXAMPLES["/tasks"] | {"tasks": [TASKS[0], ended, *TASKS[2:]]}
    await double.publish(
        {"type": "task.failed", "taskid": "task-002", "time": "2026-11-28T12:00:00Z", "source": "/s", "id": "1",
         "data": {"attempt": 2, "sandbox": "sbx-002", "error": "out of memory", "error_type": "oom"}}
    )  # fmt: skip
    await expect(row).to_contain_text("out of memory")
    await double.disconnect()
    await expect(tab.get_by_text("The connection is interrupted")).to_be_visible()
    assert await violations(tab) == []
    del double.replies["/stream"]
    await expect(tab.get_by_text("The connection is interrupted")).to_have_count(0)
    assert any("/events/stream?after=e-101" in path for path in double.requested)
    double.replies.update({"/session": 401, "/stream": 401})
    await double.disconnect()
    double.replies["/stream"] = 401
    await expect(tab).to_have_url(f"{double.url}/sign-in")


async def test_herd_page_is_used_by_keyboard_and_address(double: GatewayDouble, tab: Page) -> None:
    """`/` searches, `j` and `k` move, Enter opens; filters are in the address, and are restored by a reload."""
    await open_page(tab, "/", "Add pagination")
    await tab.keyboard.press("/")
    await tab.keyboard.type("parser")
    await expect(tab).to_have_url(f"{double.url}/?q=parser")
    await tab.get_by_role("button", name="Failed").click()
    await expect(tab).to_have_url(f"{double.url}/?q=parser&state=failed")
    await tab.reload()
    await expect(tab.get_by_role("searchbox")).to_have_value("parser")
    assert any("states=failed" in path and "contains=parser" in path for path in double.requested)
    await tab.goto("/")
    await expect(tab.get_by_role("link", name=TASKS[0]["text"], exact=True)).to_be_visible()
    await tab.keyboard.press("j")
    await tab.keyboard.press("j")
    await tab.keyboard.press("k")
    await expect(tab.get_by_role("link", name=TASKS[0]["text"], exact=True)).to_be_focused()
    await tab.keyboard.press("Enter")
    await expect(tab).to_have_url(f"{double.url}/sandboxes/sbx-001")


async def test_approval_is_decided_in_place(double: GatewayDouble, tab: Page) -> None:
    """The title has the number of approvals; a decision is sent once with its reason, a refused one can be repeated."""
    path = "/sandboxes/sbx-001/approvals/appr-01"
    double.replies[f"POST {path}"] = 503
    await open_page(tab, "/approvals", "alembic upgrade head")
    await expect(tab).to_have_title("(2) Approvals · Sandherd")
    card = tab.get_by_role("article").filter(has_text="alembic")
    await card.get_by_role("textbox").fill("use a copy first")
    await card.get_by_role("button", name="Deny").press("Enter")
    await expect(card.get_by_text("the test refuses this")).to_be_visible()
    double.replies[f"POST {path}"] = {"name": "msg-1"}
    await card.get_by_role("button", name="Deny").press("Enter")
    await expect(card.get_by_text("Sent: denied")).to_be_visible()
    assert double.received[-1] == ("POST", f"/api/v1{path}", {"granted": False, "reason": "use a copy first"})
    waiting = [one for one in EXAMPLES["/approvals"]["approvals"] if one["approval_id"] != "appr-01"]
    double.replies["/approvals"] = {"approvals": waiting, "next_cursor": None}
    await double.publish(
        {"type": "approval.denied", "time": "2026-11-28T12:00:00Z", "source": "/s", "id": "2", "data": {}}
    )
    await expect(tab).to_have_title("(1) Approvals · Sandherd")
    await expect(card).to_have_count(0)


async def test_operator_sees_checks_and_requeues_a_dead_letter(double: GatewayDouble, tab: Page) -> None:
    """Checks with errors come first, with cause and remedy; a letter is requeued once, after a second click."""
    path = "/dead-letters/7/requeue"
    double.replies[f"POST {path}"] = {"number": 7, "outcome": "dead", "detail": "no JSON", "requeued_by": "ada"}
    await open_page(tab, "/operations", SHOWN["/operations"])
    checks = tab.get_by_role("region", name="Doctor").get_by_role("row")
    await expect(checks.nth(1)).to_have_text(
        "streams error stream OUTPUT: missing provision the herd", use_inner_text=True
    )
    await expect(checks.nth(2)).to_contain_text("warning")
    await expect(tab.get_by_text("2 of 3 checks need attention")).to_be_visible()

    async def handle_again(result: str) -> None:
        await tab.get_by_role("button", name="Handle again, number 7").press("Enter")
        assert await violations(tab) == []
        await tab.get_by_role("button", name="Handle 7", exact=True).press("Enter")
        await expect(tab.get_by_text(result)).to_be_visible()

    await tab.get_by_role("button", name="Handle again, number 7").click()
    await tab.get_by_role("button", name="Keep it").click()
    assert double.received == []
    await handle_again("Message 7 could not be handled and stays here: no JSON")
    double.replies[f"POST {path}"] = 503
    await handle_again("the test refuses this")
    double.replies[f"POST {path}"] = {"number": 7, "outcome": "done", "requeued_by": "ada"}
    await handle_again("Message 7 was handled")
    await expect(tab.get_by_text("There are no dead letters")).to_be_visible()
    assert double.received == [("POST", f"/api/v1{path}", None)] * 3


async def test_operator_tests_replays_and_deletes_a_webhook(double: GatewayDouble, tab: Page) -> None:
    """Each action is sent once, and its result is shown; a deletion is confirmed first."""
    hook = EXAMPLES["/webhooks/alerts"]
    double.replies["DELETE /webhooks/alerts"] = {"name": "alerts"}
    double.replies["POST /webhooks/alerts/test"] = {"accepted": False, "status": 500, "reason": "status 500"}
    double.replies["POST /webhooks/alerts/replay"] = hook | {"dead": 0, "dead_letters": [], "waiting": 4}
    await open_page(tab, "/operations", "https://example.com/events")
    panel = tab.get_by_role("region", name="Webhooks")
    await expect(panel.get_by_role("row").nth(1)).to_contain_text("failing")
    await panel.get_by_role("button", name="Test alerts").click()
    await expect(panel.get_by_text("Test of alerts: not accepted, status 500")).to_be_visible()
    await panel.get_by_role("button", name="alerts", exact=True).click()
    await expect(panel.get_by_text("12 messages at most were no longer stored")).to_be_visible()
    await panel.get_by_role("button", name="Send dead letters again").click()
    await expect(panel.get_by_text("alerts continues after position 1,234, with 4 waiting")).to_be_visible()
    assert await violations(tab) == []
    await panel.get_by_role("button", name="Delete the webhook alerts").click()
    await panel.get_by_role("button", name="Delete alerts", exact=True).click()
    await expect(panel.get_by_text("alerts is deleted")).to_be_visible()
    assert double.received == [
        ("POST", "/api/v1/webhooks/alerts/test", None),
        ("POST", "/api/v1/webhooks/alerts/replay", {"dead_letters": True}),
        ("DELETE", "/api/v1/webhooks/alerts", None),
    ]


async def test_operator_creates_a_webhook_and_rotates_its_secret(double: GatewayDouble, tab: Page) -> None:
    """A refused creation retains the filled-in fields; each secret is shown once."""
    hook = EXAMPLES["/webhooks/alerts"]
    double.replies["PUT /webhooks/new"] = 503
    double.replies["POST /webhooks/copy/secret"] = {"webhook": hook | {"name": "copy"}, "secret": "whsec_second"}
    await open_page(tab, "/operations", "https://example.com/events")
    panel = tab.get_by_role("region", name="Webhooks")
    await panel.get_by_role("button", name="New webhook").click()
    await panel.get_by_label("Name").fill("new")
    await panel.get_by_label("URL").fill("https://example.com/new")
    await panel.get_by_label("Types").fill("task.failed, approval")
    await panel.get_by_role("button", name="Create", exact=True).click()
    await expect(panel.get_by_text("the test refuses this")).to_be_visible()
    assert await violations(tab) == []
    double.replies["PUT /webhooks/new"] = {"webhook": hook | {"name": "new"}, "secret": "whsec_first"}
    await panel.get_by_role("button", name="Create", exact=True).click()
    await expect(panel.get_by_text("whsec_first")).to_be_visible()
    assert await violations(tab) == []
    await panel.get_by_role("button", name="I have stored it").click()
    await expect(panel.get_by_text("whsec_first")).to_have_count(0)
    await panel.get_by_role("button", name="New secret for copy").click()
    await expect(panel.get_by_text("whsec_second")).to_be_visible()
    created = {"url": "https://example.com/new", "types": ["task.failed", "approval"], "start": "new"}
    assert [body for method, _, body in double.received if method == "PUT"] == [created] * 2


async def test_task_is_submitted_and_exported(double: GatewayDouble, tab: Page) -> None:
    """The form's values are sent and exported; invalid ones are marked, and a failed request loses nothing."""
    double.replies["POST /tasks"] = 503
    await open_page(tab, "/new", "Harness")
    await tab.get_by_role("button", name="Submit").click()
    await expect(tab.get_by_text("Describe the task.")).to_be_visible()
    await tab.get_by_label("Task", exact=True).fill("Count the <b>lines</b>")
    await tab.get_by_label("Harness").select_option("command")
    await tab.get_by_label("Program").fill("wc -l *")
    await tab.get_by_label("Cost (US$)").fill("0.5")
    await tab.get_by_label("Files").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"one\n"})
    await tab.get_by_role("button", name="Submit").click()
    await expect(tab.get_by_text("the test refuses this")).to_be_visible()
    await tab.get_by_role("button", name="Command line").click()
    command = "sandherd run 'Count the <b>lines</b>' --file a.txt --budget cost=0.5usd -- sh -c 'wc -l *'"
    await expect(tab.locator("pre")).to_have_text(command)
    double.replies["POST /tasks"] = {"name": "task-900"}
    await tab.get_by_role("button", name="Submit").click()
    await expect(tab).to_have_url(f"{double.url}/?q=task-900&state=all")
    first, second = (sent for sent in double.received if sent[1] == "/api/v1/tasks")
    assert first == second
    assert second[2] == {
        "text": "Count the <b>lines</b>", "harness": {"kind": "command", "argv": ["sh", "-c", "wc -l *"]},
        "files": {"a.txt": "one\n"}, "budget": {"cost_micro_usd": 500000},
    }  # fmt: skip


async def test_task_is_run_again_with_all_that_was_submitted(double: GatewayDouble, tab: Page) -> None:
    """Files, repository, limits and secrets by name are sent again; without a record, what the herd shows of it."""
    double.replies["POST /tasks"] = {"name": "task-900"}
    await open_page(tab, "/tasks/task-006", TASKS[5]["text"])
    await tab.get_by_role("link", name="Run again").click()
    await expect(tab.get_by_label("Further values")).to_contain_text('TOKEN: "forge-token"')
    await tab.get_by_role("button", name="Submit").click()
    await expect(tab).to_have_url(f"{double.url}/?q=task-900&state=all")
    assert double.received[-1][2] == SPEC
    double.replies["/tasks/task-006/submitted"] = 404
    await open_page(tab, "/new?from=task-006", "Values of task-006. Its program")


async def test_sign_in_by_a_link_and_by_a_token(double: GatewayDouble, tab: Page) -> None:
    """A link's code is used at once and leaves the address; a refused token is explained; no other site is next."""
    double.replies.update({"POST /session": 401, "/session": 401, "/stream": 401})
    await open_page(tab, "/approvals?state=decided", "Access token")
    await expect(tab).to_have_url(f"{double.url}/sign-in?next=%2Fapprovals%3Fstate%3Ddecided")
    await tab.get_by_label("Access token").fill("shd_demo_wrong")
    await tab.get_by_role("button", name="Sign in").click()
    await expect(tab.get_by_text("the access token is unknown")).to_be_visible()
    double.replies.update({"POST /session": EXAMPLES["/session"], "/session": EXAMPLES["/session"]})
    del double.replies["/stream"]
    await tab.get_by_role("button", name="Sign in").click()
    await expect(tab).to_have_url(f"{double.url}/approvals?state=decided")
    await tab.goto(f"/sign-in#code={CODE}&next=//evil.example/")
    await expect(tab).to_have_url(f"{double.url}/")
    assert [sent for _, _, sent in double.received][-1] == {"code": CODE}
    assert not any("shc_" in path for path in double.requested)


async def test_link_to_another_project_is_used_after_a_click(double: GatewayDouble, tab: Page) -> None:
    """Any site can lead a browser to a link with a code of its own, whose project the user would then use."""
    foreign = CODE.replace("demo", "foreign")
    await open_page(tab, f"/sign-in#code={foreign}", "Continue only if you have opened it yourself")
    await expect(tab).to_have_url(f"{double.url}/sign-in")
    assert double.received == []
    assert await violations(tab) == []
    double.replies.update({"/session": 401, "/stream": 401})
    await tab.goto("about:blank")
    await open_page(tab, "/sign-in", "Access token")
    await tab.evaluate(f"location.hash = 'code={CODE}'")  # pasted into an existing tab
    offered = tab.get_by_role("button", name="Sign in to demo")
    await expect(offered).to_be_visible()  # before there is a session, which would be used without a click
    del double.replies["/stream"]  # its refusal would end the new session
    double.replies.update({"POST /session": EXAMPLES["/session"], "/session": EXAMPLES["/session"]})
    await offered.click()
    await expect(tab).to_have_url(f"{double.url}/")
    assert [sent for _, _, sent in double.received] == [{"code": CODE}]


async def test_sign_in_by_a_provider(double: GatewayDouble, tab: Page) -> None:
    """With an OpenID provider the page has its link; it explains refusals, and links each project."""
    double.replies.update({"/session": 401, "/stream": 401, "/sign-in": {"oidc": True}})
    await open_page(tab, "/sign-in#error=denied&next=%2Fbudgets", "the provider has refused the sign-in")
    provided = tab.get_by_role("link", name="Sign in with your organization")
    await expect(provided).to_have_attribute("href", "/api/v1/sign-in/oidc?next=%2Fbudgets")
    assert await violations(tab) == []
    await tab.goto("about:blank")
    await open_page(tab, "/sign-in#projects=shop,bank&next=//evil.example", "Sign in to shop")
    chosen = tab.get_by_role("link", name="Sign in to bank")
    await expect(chosen).to_have_attribute("href", "/api/v1/sign-in/oidc?next=%2F&project=bank")
    await expect(provided).to_have_count(0)
    await expect(tab).to_have_url(f"{double.url}/sign-in")


async def test_many_tabs_have_one_stream(double: GatewayDouble, tab: Page) -> None:
    """A browser has six connections to a host: of eight tabs none hangs, and another reads when the first closes."""
    tabs = [tab, *[await tab.context.new_page() for _ in range(7)]]
    for one in tabs:
        await one.goto("/conductor")
        await expect(one.get_by_text("live", exact=True)).to_be_visible()
        await expect(one.get_by_text("app/models.py").first).to_be_visible()
    assert double.open_streams == 1
    begun = double.begun_streams
    await tabs[0].close()
    await eventually(
        lambda: any("/events/stream?after=e-100" in path for path in double.requested), "another tab reads"
    )
    await eventually(lambda: double.begun_streams > begun and double.open_streams == 1, "only its stream is open")
    empty = {"mode": "inform", "projects": []}
    double.replies["/monitor/report"] = empty
    await double.publish(
        {"type": "monitor.finding_withdrawn", "time": "2026-11-28T12:00:00Z", "source": "/s", "id": "3"}
    )
    for one in tabs[1:]:
        await expect(one.get_by_text("No sandbox is running")).to_be_visible()
