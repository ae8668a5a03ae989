"""The spawner's part of a pull request's body, and what a pull request shows of the tasks of its branch."""

from types import SimpleNamespace
from typing import Any

import pytest

from spawner.forges.body_section import new_section, with_section
from spawner.pull_requests.pull_request_facts import PullRequestTask
from tests.unit.spawner.test_spawner_pull_request_steps import branch, pull


@pytest.mark.parametrize(
    "body",
    [
        "Mine.", "", new_section("x").replace("\nx\n", "\nchanged\n"), new_section("x").replace("end", "END"),
        new_section("x").removesuffix("<!-- sandherd:end -->"), "<!-- sandherd:begin 000000000000 -->\n" * 30_000,
    ],
    ids=["no part", "empty", "changed", "without its end", "cut off", "many beginnings"],
)  # fmt: skip
def test_body_that_users_changed_is_left(body: str) -> None:
    """Also one whose comments they removed."""
    assert with_section(body, new_section("y")) == body


@pytest.mark.parametrize(
    "text", ["<!-- sandherd:end -->", "<!--sandherd:begin 000000000000 -->\nx\n<!-- sandherd:end -->", "a\r\nb", "\\1"]
)
def test_only_the_spawners_part_is_replaced(text: str) -> None:
    """Whatever texts of a task are in it, or users wrote around it, with any line endings."""
    before = f"{text}\n\nBefore.\n{new_section(text)}\nAfter.\n{text}".replace(text, "", 1)
    for body in (before, before.replace("\r\n", "\n").replace("\n", "\r\n")):
        after = with_section(body, new_section("new"))
        assert new_section("new") in after
        assert after.lstrip().startswith("Before.\n")
        assert "\nAfter.\n" in after


def test_cost_is_that_of_all_tasks_of_the_branch() -> None:
    """Those whose records were removed, too, as far as they were known when it was written last."""

    def task(cost: Any) -> Any:
        return SimpleNamespace(
            result={"cost_micro_usd": cost},
            spec=SimpleNamespace(continuous=None),
            view=lambda **_: SimpleNamespace(text=""),
        )

    known = branch(
        pull(costs={"task-1": 5, "task-2": 7, "task-0": 99}, task="task-1"), tasks=("task-1", "task-2", "task-3")
    )
    found = PullRequestTask.of(known, {"task-2": task(30), "task-3": task(None)})
    assert (found.costs, found.cost_micro_usd) == ({"task-1": 5, "task-2": 30}, 35)
    assert PullRequestTask.of(branch(pull(task="task-1")), {}).cost_micro_usd is None
