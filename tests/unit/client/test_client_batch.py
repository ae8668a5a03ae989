"""Several tasks from a file: ordered by dependency, or refused with the reason."""

import asyncio
import io
import json
from collections.abc import Coroutine
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.cli.options import Format
from sandherd.cli.scheduled_task import scheduled_task
from sandherd.cli.task_batches import submit_batch
from sandherd.client import Herd, HerdError
from sandherd.client.tasks.batch import order_tasks, read
from sandherd.client.tasks.resume import ResumeSource
from sandherd.contracts.requests import Catalogue


def entry(name: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "text": name, "argv": ["true"], "depends_on": list(depends_on), **more}


@given(st.lists(st.sets(st.integers(0, 11)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_batch_is_ordered_by_dependencies(waits: list[set[int]], chance: Any) -> None:
    """Any order in the file is accepted, as long as there is no circle."""
    entries = [
        entry(str(number), *(str(other) for other in others if other < number)) for number, others in enumerate(waits)
    ]
    chance.shuffle(entries)
    found = order_tasks(entries)
    assert len(found) == len(entries)
    seen: set[str] = set()
    for one in found:
        assert set(one.spec.depends_on) <= seen
        seen.add(one.task)


def test_names_in_a_batch_become_task_names() -> None:
    """Submitted tasks get new names, or those of `task`; `after` names earlier ones."""
    first, last = order_tasks([entry("last", "first", after=["task-old"]), entry("first", task="task-mine")])
    assert first.task == "task-mine"
    assert last.spec.depends_on == ("task-mine", "task-old")
    assert last.task.startswith("task-")


@pytest.mark.parametrize(
    ("entries", "expected_text"),
    [
        ([entry("a", "a")], "a → a"),
        ([entry("a", "b"), entry("b", "c"), entry("c", "a")], "dependency cycle: "),
        ([entry("a", "b")], "a: it depends on 'b', which is not in the file"),
        ([entry("a"), entry("a")], "two tasks are named 'a'"),
        ([entry("a", wizard=1)], "a: wizard"),
        ([entry("a", priority="urgent")], "a: priority"),
        ([entry("a", after=["No Name"])], "a: depends_on"),
        ([entry("a", task="No Name")], "a: task"),
        ([entry("a", env={"PIN": "123"}, secret_env=["PIN"])], "a: the value of PIN has fewer than 4 characters"),
    ],
)
def test_invalid_batch_entry_is_refused_with_its_task(entries: list[dict[str, Any]], expected_text: str) -> None:
    """The error names the task; no entry is accepted partly."""
    with pytest.raises(HerdError) as raised:
        order_tasks(entries)
    assert expected_text in raised.value.line
    assert raised.value.problem.remedy


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ("memory", "limits: {memory_mb: 4096}"),
        ("wizard", "limits, linger_seconds, max_intervention, name, no_repository"),
    ],
)
def test_unknown_field_is_refused_with_what_to_write(field: str, remedy: str) -> None:
    """An option of `sandherd run` as the file has it; else the fields of a task, also those that only a file has."""
    with pytest.raises(HerdError) as raised:
        order_tasks([entry("a", **{field: "4g"})])
    assert raised.value.problem.message == f"a: {field} is not a field of a task"
    assert remedy in str(raised.value.problem.remedy)
    assert "sealed" not in str(raised.value.problem.remedy)


def test_entry_without_an_agent_has_the_projects_default() -> None:
    """The spawner refuses it if the project has none."""
    (found,) = order_tasks([{"name": "a", "text": "a"}])
    assert found.spec.harness.kind == "default"


@pytest.mark.parametrize("text", ["", "hello", "tasks: 3", "tasks: []", "[1]", "a: [", "\x00"])
def test_file_without_tasks_is_refused(tmp_path: Path, text: str) -> None:
    """The error has its name."""
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    with pytest.raises(HerdError, match=r"tasks\.yaml"):
        read(path)


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (b"tasks: [\n", "neither YAML nor JSON: line 2, column 1: expected the node content, but found"),
        (b"\tx: 1", "line 1, column 1: found character '\\t' that cannot start any token"),
        (b"\xff\xfe", "neither YAML nor JSON: it is not UTF-8 text"),
    ],
)
def test_fault_of_a_file_is_named_with_its_place(tmp_path: Path, text: bytes, expected_text: str) -> None:
    """In one sentence, without the parser's drawing of the line and its own names of files."""
    path = tmp_path / "tasks.yaml"
    path.write_bytes(text)
    with pytest.raises(HerdError) as raised:
        read(path)
    assert expected_text in raised.value.line
    assert "unicode string" not in raised.value.line
    assert "^" not in raised.value.line


@pytest.mark.parametrize(("value", "shown"), [(True, '"true"'), (3, '"3"')])
def test_argument_that_yaml_read_as_another_type_is_named(value: object, shown: str) -> None:
    """`argv: [true]` in a file is not the program `true`: the error says what to put in quotes."""
    with pytest.raises(HerdError, match="argv has to be a list of strings: put") as raised:
        order_tasks([entry("a", argv=[value])])
    assert shown in raised.value.line


def test_example_is_valid() -> None:
    """The batch in the help can be submitted."""
    found = read(Path(__file__).parents[3] / "examples" / "batch" / "tasks.yaml")
    assert [one.label for one in found][-1] == "report"


def test_batch_task_resumes_an_earlier_task() -> None:
    """An entry resumes by name or with options; an invalid one is refused with its task's name."""
    claude = {"harness": {"kind": "claude"}, "text": "go on"}
    wanted = {"task": "task-old", "fork": True, "attempt": 2, "work": False}
    first, last = order_tasks(
        [{"name": "a", "resume": "task-old", **claude}, {"name": "b", "resume": wanted, **claude}]
    )
    assert (first.earlier, first.spec.resume) == (ResumeSource(task="task-old"), None)
    assert last.earlier == ResumeSource(task="task-old", fork=True, attempt=2, work=False)
    for wrong in (7, "no.name", {"fork": True}, {"task": "task-old", "forks": True}):
        with pytest.raises(HerdError, match=r"^a: "):
            order_tasks([{"name": "a", "resume": wrong, **claude}])


def test_file_of_tasks_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file `-` is standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("tasks: [{name: a, text: x}]"))
    assert [one.spec.text for one in read(Path("-"))] == ["x"]


class Checked(Herd):
    """A herd without a broker, with the runtimes, profiles and harnesses of the golden example."""

    def __init__(self) -> None:
        golden = files("sandherd.contracts") / "golden/v1/replies/spawner.list_runtimes.json"
        found = Catalogue.model_validate(json.loads(golden.read_text())["ok"])
        caps = found.caps.model_copy(update={"memory_mb": 1024})
        self._known = found.model_copy(update={"caps": caps, "max_attempts": 5})
        self._known_names: frozenset[str] = frozenset()
        self.connection: Any = SimpleNamespace(request=None, project="default")

    async def _catalogue_or_none(self, seconds: float = 0) -> Catalogue | None:
        return self._known


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"harness": {"kind": "claud"}}, "harness"),
        ({"runtime": "nowhere"}, "runtime"),
        ({"limits": {"memory_mb": 65_536}}, "limits.memory_mb"),
        ({"retry": {"max_attempts": 20}}, "retry.max_attempts"),
    ],
)
def test_task_of_a_file_that_the_herd_would_refuse_is_named_with_its_file_and_field(
    more: dict[str, Any], field: str, tmp_path: Path
) -> None:
    """A file has no options: the remedy names the field, also of a schedule's task."""
    path = tmp_path / "tasks.yaml"
    path.write_text(json.dumps({"tasks": [{"name": "build", "text": "x"} | more]}))
    herd = Checked()
    errors = []
    for work in (
        submit_batch(path, Format.TABLE, labels={}, wait=False, timeout=None),
        scheduled_task([str(path)]).spec,
    ):
        with pytest.raises(HerdError) as raised:
            asyncio.run(cast("Coroutine[Any, Any, object]", work(herd)))
        errors.append(raised.value.problem)
    for problem in errors:
        assert problem.message.startswith(f"{path}: build: ")
        assert problem.remedy == f"change its field `{field}`; see `sandherd runtimes`"
