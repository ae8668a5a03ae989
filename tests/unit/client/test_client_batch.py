"""Several tasks from a file: in an order in which none waits for a later one, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.client import HerdError
from sandherd.client.batch import ordered, read
from sandherd.client.resuming import Earlier


def entry(name: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "text": name, "argv": ["true"], "depends_on": list(depends_on), **more}


@given(st.lists(st.sets(st.integers(0, 11)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_each_comes_after_those_it_waits_for(waits: list[set[int]], chance: Any) -> None:
    """However they stand in the file, as long as none waits for itself in a circle."""
    entries = [
        entry(str(number), *(str(other) for other in others if other < number)) for number, others in enumerate(waits)
    ]
    chance.shuffle(entries)
    found = ordered(entries)
    assert len(found) == len(entries)
    seen: set[str] = set()
    for one in found:
        assert set(one.spec.depends_on) <= seen
        seen.add(one.task)


def test_names_of_the_file_become_names_of_tasks() -> None:
    """What is submitted is named anew, or as `task` says; `after` names what was submitted before."""
    first, last = ordered([entry("last", "first", after=["task-old"]), entry("first", task="task-mine")])
    assert first.task == "task-mine"
    assert last.spec.depends_on == ("task-mine", "task-old")
    assert last.task.startswith("task-")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("a", "a")], "a → a"),
        ([entry("a", "b"), entry("b", "c"), entry("c", "a")], "these wait for each other"),
        ([entry("a", "b")], "a: it waits for 'b', which is not in the file"),
        ([entry("a"), entry("a")], "two tasks are called 'a'"),
        ([entry("a", wizard=1)], "a: wizard"),
        ([entry("a", priority="urgent")], "a: priority"),
        ([{"name": "a", "text": "a"}], "a: harness"),
        ([entry("a", after=["No Name"])], "a: depends_on"),
        ([entry("a", task="No Name")], "a: task"),
    ],
)
def test_what_is_wrong_is_named(entries: list[dict[str, Any]], says: str) -> None:
    """With the task it is about; nothing is half taken."""
    with pytest.raises(HerdError) as raised:
        ordered(entries)
    assert says in raised.value.line
    assert raised.value.problem.remedy


@pytest.mark.parametrize("text", ["", "hello", "tasks: 3", "tasks: []", "[1]", "a: [", "\x00"])
def test_a_file_that_holds_no_tasks_is_refused(tmp_path: Path, text: str) -> None:
    """Its name is said."""
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    with pytest.raises(HerdError, match=r"tasks\.yaml"):
        read(path)


def test_the_example_is_right() -> None:
    """What help names can be submitted."""
    found = read(Path(__file__).parents[3] / "examples" / "batch" / "tasks.yaml")
    assert [one.label for one in found][-1] == "report"


def test_a_task_of_a_file_goes_on_from_one_that_was_submitted_before() -> None:
    """By its name, or with what is wanted of it; what is wrong with that is refused with the task that says it."""
    claude = {"harness": {"kind": "claude"}, "text": "go on"}
    wanted = {"task": "task-old", "fork": True, "attempt": 2, "work": False}
    first, last = ordered([{"name": "a", "resume": "task-old", **claude}, {"name": "b", "resume": wanted, **claude}])
    assert (first.earlier, first.spec.resume) == (Earlier(task="task-old"), None)
    assert last.earlier == Earlier(task="task-old", fork=True, attempt=2, work=False)
    for wrong in (7, "no.name", {"fork": True}, {"task": "task-old", "forks": True}):
        with pytest.raises(HerdError, match=r"^a: "):
            ordered([{"name": "a", "resume": wrong, **claude}])
