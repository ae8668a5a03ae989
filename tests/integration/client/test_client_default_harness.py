"""A file with a task that takes the project's default harness."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandherd.contracts.requests import LimitView, ListProjects, ProjectList, ProjectView
from sandherd.contracts.subjects import Principal

Neighbours = Any
Sandherd = Callable[..., Any]


async def stored_commands(neighbours: Neighbours) -> int:
    found: int = (await neighbours.buses[Principal.SPAWNER].js.stream_info("COMMANDS")).state.messages
    return found


async def test_nothing_of_a_file_is_sent_if_a_task_has_no_harness(
    neighbours: Neighbours, sandherd: Sandherd, tmp_path: Path
) -> None:
    """Nothing is sent; the error names the task by its name in the file, and what to add there."""
    limit = LimitView(maximum=8, source="max_sandboxes")
    view = ProjectView(project="default", tasks=limit, sandboxes=limit)
    await neighbours.answer(Principal.SPAWNER, ListProjects, lambda _: ProjectList(projects=[view]))
    file = tmp_path / "tasks.json"
    tasks = [{"name": "one", "text": "x", "argv": ["true"]}, {"name": "two", "text": "y"}]
    file.write_text(json.dumps({"tasks": tasks}))
    before = await stored_commands(neighbours)
    status, out, err = await sandherd("tasks", "submit", str(file))
    assert (status, out) == (2, "")
    assert "two: it has neither `argv` nor `harness`, and project default has no default harness" in err
    assert "sandherd projects set default --harness" in err
    assert await stored_commands(neighbours) == before
