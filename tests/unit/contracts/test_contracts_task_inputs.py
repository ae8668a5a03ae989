"""Inputs of a task: which are valid in a spec and in a file of tasks, and which paths they name."""

from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.client import HerdError
from sandherd.client.tasks.batch import order_tasks
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.task_inputs import PathPatterns

SPEC: dict[str, Any] = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}, "depends_on": ["task-build"]}
BUILD: dict[str, Any] = {"name": "build", "text": "x", "argv": ["true"]}
TEST: dict[str, Any] = {"name": "test", "text": "x", "argv": ["true"], "depends_on": ["build"]}


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\0b", "x" * 513])
def test_paths_are_inside_the_work_tree(path: str) -> None:
    """The error names the field."""
    with pytest.raises(ValidationError, match="paths"):
        TaskSpec.model_validate(SPEC | {"inputs": [{"task": "task-build", "paths": [path]}]})


def test_inputs_are_of_dependencies() -> None:
    """An input of another task is refused: only dependencies are certain to have ended before."""
    with pytest.raises(ValidationError, match="task-other is not in depends_on"):
        TaskSpec.model_validate(SPEC | {"inputs": [{"task": "task-other", "paths": ["a"]}]})
    with pytest.raises(ValidationError, match="paths"):
        TaskSpec.model_validate(SPEC | {"inputs": [{"task": "task-build", "paths": []}]})


def test_spec_without_inputs_is_as_before() -> None:
    """The field is omitted without inputs: workers and spawners of an earlier version refuse unknown fields."""
    assert "inputs" not in TaskSpec.model_validate(SPEC).to_json()


def test_file_names_its_own_tasks_and_earlier_ones() -> None:
    """`from` names a task of the file or of `after`.

    If others take files from a task of the file, its result is stored.
    """
    taking = TEST | {
        "after": ["task-old"],
        "inputs": [{"from": "build", "paths": ["a"]}, {"from": "task-old", "paths": ["b"]}],
    }
    build, test = order_tasks([BUILD, taking])
    assert [one.task for one in test.spec.inputs] == [build.task, "task-old"]
    assert (build.spec.keep_work, test.spec.keep_work) == (True, False)
    assert [one.spec.keep_work for one in order_tasks([BUILD, TEST])] == [False, False]


@pytest.mark.parametrize(
    "inputs",
    [
        [{"from": "other", "paths": ["a"]}],
        [{"from": "test", "paths": ["a"]}],
        [{"from": "build"}],
        [{"from": "build", "paths": ["../a"]}],
        [{"from": "build", "paths": ["a"], "sandbox": "sbx-1", "more": 1}],
        [{"paths": ["a"]}],
        [{"from": ["build"], "paths": ["a"]}],
        {"from": "build", "paths": ["a"]},
        "build",
        ["build"],
    ],
    ids=range(10),
)
def test_invalid_inputs_of_a_file_are_refused(inputs: Any) -> None:
    """The file is refused before anything is sent, with the task's name in the file."""
    with pytest.raises(HerdError, match="test: "):
        order_tasks([BUILD, TEST | {"inputs": inputs}])


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("out.txt", "out.txt", True),
        ("out.txt", "a/out.txt", False),
        ("dist", "dist/a/b", True),
        ("dist/**", "dist/a/b", True),
        ("dist/**", "dist", False),
        ("dist/*", "dist/a/b", True),
        ("*.txt", "a.txt", True),
        ("*.txt", "a/b.txt", False),
        ("**/*.txt", "a/b.txt", True),
        ("!a", "!a", True),
        ("#a", "#a", True),
        ("a?c", "abc", True),
        ("[ab]", "c", False),
        ("ü", "ü", True),
    ],
)
def test_patterns_begin_at_the_top_of_the_work_tree(pattern: str, path: str, fits: bool) -> None:
    """A folder stands for everything in it. The patterns that have matched are remembered."""
    patterns = PathPatterns([pattern, "never"])
    assert patterns.match(path) is fits
    assert patterns.unmatched == (["never"] if fits else [pattern, "never"])
