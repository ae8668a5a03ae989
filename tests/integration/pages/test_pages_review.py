"""What a reviewer needs: the whole change, what an agent waits for, and reasons for what is absent."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.integration.pages.conftest import violations
from tests.integration.pages.examples import APPROVALS, EXAMPLES, TASKS, ago
from tests.integration.pages.gateway_double import GatewayDouble
from tests.integration.pages.test_pages_documents import event, identifier, messages, show

pytestmark = pytest.mark.asyncio(loop_scope="module")
SESSION = "/sandboxes/sbx-001"


def edited(number: int, path: str, **data: Any) -> dict[str, Any]:
    change = {"file_path": path, "change_type": "modified", "lines_added": 1, "lines_removed": 1, **data}
    return event(number, "agent.file_edited", **change)


def diff(before: str, after: str) -> str:
    return f"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-{before}\n+{after}\n"


async def test_all_edits_of_a_file_are_reviewed_together(double: GatewayDouble, tab: Page) -> None:
    """A file shows all of its edits until one is chosen; a file without a diff states why, not `+0 −0`."""
    uncounted = {"lines_added": 0, "lines_removed": 0}
    show(double, [
        edited(1, "app.py", full_diff=diff("one", "two")),
        edited(2, "app.py", full_diff=diff("two", "three")),
        edited(3, "package-lock.json", diff_preview="not read: 2877800 bytes", **uncounted),
    ])  # fmt: skip
    await tab.goto(f"{SESSION}?tab=files&file=app.py")
    added = tab.get_by_label("Changes of app.py").locator(".add")
    await expect(added).to_contain_text(["two", "three"])
    await expect(added).to_have_count(2)
    await expect(tab.get_by_text("all 2 edits")).to_be_visible()
    await tab.get_by_role("button", name="Earlier edit").click()
    await expect(added).to_have_count(1)
    await expect(added).to_contain_text("three")
    await tab.get_by_role("button", name="All edits").click()
    await expect(added).to_have_count(2)
    large = tab.get_by_role("button", name="package-lock.json")
    await expect(large).not_to_contain_text("+0")
    await large.click()
    await expect(tab.get_by_text("Too large for a diff: 2.7 MiB")).to_be_visible()
    await expect(tab.get_by_role("button", name="Later edit")).to_have_count(0)
    assert await violations(tab) == []


async def test_session_states_that_it_waits_for_an_approval(double: GatewayDouble, tab: Page) -> None:
    """Every view of the session states it, and leads to the approval in a long timeline; also a second time."""
    requested = event(1, "agent.approval_requested", approval_id="appr-01", tool="Bash", input={"command": "make"})
    show(double, [requested, *messages(90)[1:]])
    await tab.goto(f"{SESSION}?tab=monitor")
    await expect(tab.get_by_text("waits for an approval")).to_be_visible()
    assert await violations(tab) == []
    for _ in range(2):
        await tab.get_by_role("button", name="Show it").click()
        await expect(tab.locator(".row.open").get_by_role("button", name="Grant")).to_be_in_viewport()
        await tab.get_by_role("feed").press("End")
        await expect(tab.get_by_text("message 90.", exact=True)).to_be_in_viewport()
    double.replies["/approvals"] = {"approvals": [], "next_cursor": None}
    await tab.reload()
    await expect(tab.get_by_text("message 2.", exact=True)).to_be_visible()
    await expect(tab.get_by_text("waits for an approval")).to_have_count(0)


async def test_session_that_can_not_be_read_shows_that_alone(double: GatewayDouble, tab: Page) -> None:
    """After an error no rows seem to load; while rows load, they do not cover the message box on a phone."""
    show(double, messages(3))
    double.replies[f"{SESSION}/events"] = 503
    await tab.goto(SESSION)
    await expect(tab.get_by_role("alert")).to_contain_text("the test refuses this")
    await expect(tab.get_by_role("status", name="loading")).to_have_count(0)
    double.replies["/stream"] = 503
    await tab.set_viewport_size({"width": 360, "height": 740})
    await tab.goto(SESSION)
    await expect(tab.get_by_role("status", name="loading")).to_be_visible()
    assert await tab.locator(".stage").evaluate("(stage) => getComputedStyle(stage).overflow") == "hidden"


async def test_session_leads_to_its_task_and_to_a_new_one(double: GatewayDouble, tab: Page) -> None:
    """The header names the task and the sandbox; when the task has ended, it can be run again from here."""
    show(double, messages(3))
    await tab.goto(SESSION)
    await expect(tab.get_by_role("link", name="task-001", exact=True)).to_have_attribute("href", "/tasks/task-001")
    await expect(tab.get_by_text("sbx-001", exact=True)).to_be_visible()
    await expect(tab.get_by_role("link", name="Run again")).to_have_count(0)
    double.replies["/tasks/task-001"] = TASKS[0] | {"state": "completed", "ended_at": ago(1)}
    await tab.reload()
    await expect(tab.get_by_role("link", name="Run again")).to_have_attribute("href", "/new?from=task-001")


@pytest.mark.parametrize("page", [SESSION, f"{SESSION}/replay"], ids=["session", "replay"])
async def test_sandbox_that_is_not_there_does_not_load_for_ever(double: GatewayDouble, tab: Page, page: str) -> None:
    """The page states that there is no such sandbox, without rows that seem to load."""
    await tab.goto(page)
    await expect(tab.get_by_role("alert").first).to_contain_text("the test refuses this – retry")
    await expect(tab.get_by_role("main").get_by_role("status", name="loading")).to_have_count(0)
    await expect(tab.get_by_role("button", name="Timeline")).to_have_count(0)
    assert await violations(tab) == []


async def test_row_of_a_task_shows_what_it_needs(double: GatewayDouble, tab: Page) -> None:
    """A running task that waits for an approval does not look like one that works."""
    await tab.goto("/")
    row = tab.get_by_role("listitem").filter(has=tab.locator("[data-row]"))
    await expect(row.filter(has_text="Add pagination")).to_contain_text("approval")
    await expect(row.filter(has_text="Fix the flaky test")).to_contain_text("waits for you")
    await expect(row.filter(has_text="Write the release notes")).not_to_contain_text("approval")


async def test_approval_names_its_task_and_fits_a_phone(double: GatewayDouble, tab: Page) -> None:
    """A user sees the task of the agent; a long name and a long command make no page wider than the phone."""
    name, command = f"task-{'0' * 26}", "python -m shop.migrate " + "--all " * 20
    requested = APPROVALS[0] | {"task": name, "input": {"command": command}, "reason": command}
    double.replies["/approvals"] = {"approvals": [requested], "next_cursor": None}
    double.replies[f"/tasks/{name}"] = TASKS[0] | {"task": name, "text": "Add pagination"}
    await tab.set_viewport_size({"width": 360, "height": 740})
    await tab.goto("/approvals")
    await expect(tab.get_by_text("Task: Add pagination")).to_be_visible()
    await expect(tab.get_by_text("python -m shop.migrate")).to_have_count(1)
    assert await tab.evaluate("() => document.documentElement.scrollWidth") <= 360
    await expect(tab.get_by_role("link", name="Approvals")).to_be_in_viewport()
    await tab.goto("/operations")
    await expect(tab.get_by_role("link", name="Operations")).to_be_in_viewport()


async def test_monitor_of_a_session_fits_a_phone(double: GatewayDouble, tab: Page) -> None:
    """Panels are as wide as the phone, rules with a pattern are first, and each event of the evidence has a link."""
    show(double, messages(3))
    rules = [{"rule": name, "kind": "guardian", "state": "active", "count": 1.0, "threshold": 3.0, "next_step": "nudge",
              "summary": summary} for name, summary in (("cycle", None), ("loop", "the same call " * 9))]  # fmt: skip
    double.replies[f"{SESSION}/monitor"] = {
        "findings": [], "rules": rules, "spending": [],
        "interventions": [{"number": 1, "step": "nudge", "rule": "loop", "decided_at": ago(1),
                           "evidence": [identifier(1), identifier(2)]}],
    }  # fmt: skip
    await tab.set_viewport_size({"width": 360, "height": 740})
    await tab.goto(f"{SESSION}?tab=monitor")
    await expect(tab.get_by_role("rowheader")).to_have_text(["loop", "cycle"])
    first, second = [await tab.get_by_label(f"Event {number} of the evidence").bounding_box() for number in (1, 2)]
    assert first is not None
    assert second is not None
    assert second["x"] > first["x"] + first["width"]
    panels = tab.locator(".panel")
    assert max([await panel.evaluate("(panel) => panel.offsetWidth") for panel in await panels.all()]) <= 360


async def test_sums_without_a_cost_and_links_of_budgets(double: GatewayDouble, tab: Page) -> None:
    """What no harness reports has no amount, also in the sum; a budget links to its task."""
    used = EXAMPLES["/statistics"]["total"] | {"cost_micro_usd": 0}
    double.replies["/statistics"] = EXAMPLES["/statistics"] | {"total": used, "groups": [used | {"group": "x"}]}
    await tab.goto("/usage")
    await expect(tab.get_by_role("row").last).to_contain_text("unmetered")
    await tab.goto("/budgets")
    await expect(tab.get_by_role("link", name="task-002")).to_have_attribute("href", "/tasks/task-002")
    await tab.goto("/nowhere")
    await expect(tab.get_by_role("heading", name="Not found")).to_be_visible()
