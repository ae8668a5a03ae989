"""Several tasks are submitted, listed, waited for and cancelled together, with their cost, on real services."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from sandherd.client import Herd
from sandherd.client.herd import task_spec
from sandherd.client.tasks.progress import TaskProgress
from sandherd.contracts.events.task import TaskRejected
from sandherd.contracts.requests import ListLiveTasks, TaskList
from sandherd.contracts.subjects import Principal
from tests.polling import eventually

Sandherd = Callable[..., Any]
SPENDING = """
import json, os
with os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w") as events:
    data = {"model": "m1", "input_tokens": 10, "output_tokens": 2, "cost_micro_usd": 1500000}
    print(json.dumps({"type": "agent.usage", "data": data}), file=events)
"""


def batch_file(folder: Path, *entries: dict[str, Any]) -> str:
    file = folder / "tasks.yaml"
    file.write_text(yaml.safe_dump({"tasks": list(entries)}))
    return str(file)


async def test_batch_is_waited_for_listed_and_its_cost_is_shown(real: Herd, sandherd: Sandherd, tmp_path: Path) -> None:
    """`submit --wait` fails if one task fails; `list`, `wait` and `costs` select the tasks of the batch."""
    good = {"name": "good", "text": "spend", "argv": ["python3", "agent.py"], "files": {"agent.py": SPENDING}}
    bad = {"name": "bad", "text": "fail", "argv": ["false"], "labels": {"team": "web"}}
    file = batch_file(tmp_path, good, bad)
    status, out, err = await sandherd("tasks", "submit", file, "--wait", "--label", "night=1", "-o", "json")
    found = json.loads(out)
    assert (status, err) == (1, "")
    assert {one["name"]: one["state"] for one in found["tasks"]} == {"good": "completed", "bad": "failed"}
    assert (found["total"], found["ended"], found["completed"], found["timed_out"]) == (2, 2, False, False)
    batch = found["batch"]
    listed = json.loads((await sandherd("tasks", "list", "--batch", batch, "--sort", "state", "-o", "json"))[1])[
        "tasks"
    ]
    assert [one["state"] for one in listed] == ["completed", "failed"]
    assert listed[1]["labels"] == {"team": "web", "night": "1", "sandherd/batch": batch, "sandherd/name": "bad"}
    for more in ((), ("-o", "wide")):
        head, *rows = (await sandherd("tasks", "list", "--sort", "state", *more))[1].splitlines()
        assert [(row.split()[2], batch in row) for row in rows] == [("good", True), ("bad", True)]
        assert {"NAME", "BATCH"} <= set(head.split())
    for words in (("tasks", "get"), ("tasks", "cancel"), ("logs",)):
        status, _, err = await sandherd(*words, "bad")
        assert (status, f"bad is the name in its file of {listed[1]['task']}" in err) == (1, True), err
    assert (await sandherd("tasks", "wait", "--batch", batch))[0] == 1
    assert (await sandherd("tasks", "wait", listed[0]["task"]))[0] == 0
    assert (await sandherd("tasks", "wait", "--label", "night=2"))[0] == 1

    shown = (await sandherd("tasks", "submit", batch_file(tmp_path, bad), "--wait"))[1]
    assert shown.splitlines()[-1].startswith("batch  batch-")

    async def stored() -> bool:
        return (await real.costs(batch=batch)).group_count == 1

    await eventually(stored)
    _, out, _ = await sandherd("costs", "--batch", batch, "--by", "model")
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        ["m1", "$1.5000", "10", "2"],
        ["total", "$1.5000", "10", "2"],
    ]
    _, out, _ = await sandherd("costs", "--by", "label:team", "-o", "json")
    assert json.loads(out)["groups"][0]["cost_micro_usd"] == 1_500_000


async def test_matrix_runs_as_one_task_for_each_combination(real: Herd, sandherd: Sandherd, tmp_path: Path) -> None:
    """Each task gets its own values, a dependent waits for all, a label finds them; an invalid file sends nothing."""
    tested = {
        "name": "test",
        "text": "test ${{ matrix.python }}",
        "argv": ["sh", "-c", 'test "$PYTHON" = 3.10 || test "$PYTHON" = 3.11'],
        "env": {"PYTHON": "${{ matrix.python }}"},
        "matrix": {"python": ["3.10", "3.11"], "os": ["debian"]},
    }
    report = {"name": "report", "text": "report", "argv": ["true"], "depends_on": ["test"]}
    wrong = {**tested, "matrix": {"python": ["3.11", 3.10]}}
    status, out, err = await sandherd("tasks", "submit", batch_file(tmp_path, wrong, report))
    assert (status, out) == (2, "")
    assert f"{tmp_path}/tasks.yaml: test: matrix.python[1]: YAML reads it as" in err
    assert "quote it" in err
    status, out, _ = await sandherd("tasks", "submit", batch_file(tmp_path, tested, report), "--wait", "-o", "json")
    assert status == 0
    found = {one["name"]: one["state"] for one in json.loads(out)["tasks"]}
    assert found == {"test-debian-3-10": "completed", "test-debian-3-11": "completed", "report": "completed"}
    listed = json.loads((await sandherd("tasks", "list", "--label", "python=3.10", "-o", "json"))[1])["tasks"]
    assert [(one["text"], one["labels"]["os"]) for one in listed] == [("test 3.10", "debian")]


async def test_live_tasks_of_a_label_are_shown_and_cancelled(real: Herd, sandherd: Sandherd) -> None:
    """`top` shows a running task; `cancel --label` ends all with the label, and a waiting command notices it."""
    labels = {"team": "data"}
    outcomes = await real.submit_batch(
        {f"task-{name}": task_spec("work", ["sleep", "600"], labels=labels) for name in ("one", "two")}
    )
    assert {one.state for one in outcomes} <= {"pending", "assigned", "running"}
    shown = json.loads((await sandherd("top", "-o", "json"))[1])["tasks"]
    assert [one["task"] for one in shown] == ["task-one", "task-two"]
    assert (await real.wait_all(labels=labels, timeout=0.01))[0].ended is False
    reached: list[TaskProgress] = []
    waiting = asyncio.ensure_future(real.wait_all(labels=labels, on_progress=reached.append))
    await eventually(lambda: bool(reached))
    status, out, err = await sandherd("tasks", "cancel", "--label", "team=data", "--reason", "enough")
    assert (status, out, err) == (0, "cancelled 2 of 2 tasks that had not ended\n", "")
    assert {one.state for one in await waiting} == {"cancelled"}
    assert (await sandherd("tasks", "cancel", "--label", "team=data"))[1].startswith("cancelled 0 of 0")
    later = datetime.now(UTC) + timedelta(hours=1)
    assert (await real.tasks(labels=labels, since=later)).items == []


async def test_rejected_task_of_a_batch_fails_the_command(neighbours: Any, sandherd: Sandherd, tmp_path: Path) -> None:
    """`submit` shows the reason of a rejection, although the broker had stored the command."""
    await neighbours.answer(Principal.SPAWNER, ListLiveTasks, lambda _: TaskList(tasks=[]))
    entry = {"name": "one", "text": "x", "argv": ["true"]}
    submitting = asyncio.ensure_future(sandherd("tasks", "submit", batch_file(tmp_path, entry)))
    sent = await neighbours.take(Principal.SPAWNER)
    rejected = TaskRejected(reason="the herd has no such runtime", command_id=str(sent.id))
    await neighbours.publish_event(f"spawner/{sent.subject}/{sent.id.hex}", rejected)
    status, _, err = await submitting
    assert (status, err) == (1, f"sandherd: {sent.subject} was rejected: the herd has no such runtime\n")
