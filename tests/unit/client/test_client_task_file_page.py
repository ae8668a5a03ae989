"""The sample of docs/task-files.md: it has every field, and is valid."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from sandherd.client import HerdError
from sandherd.client.repositories.source import RepositorySource
from sandherd.client.tasks.batch import INTERNAL, read
from sandherd.client.tasks.resume import ResumeSource
from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.continuous import Continuous, Validation
from sandherd.contracts.repositories import CoAuthor
from sandherd.contracts.specs import RetryPolicy, SandboxLimits, TaskSpec

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "examples" / "batch" / "all-fields.yaml"
TASKS: list[dict[str, Any]] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))["tasks"]
ALL: Mapping[str, Any] = {name: value for task in TASKS for name, value in task.items()}
EITHER = {"path", "branch"}
"""Fields of a repository that exclude others: the sample names them in comments."""


def test_sample_is_valid() -> None:
    """It is three tasks in the order of their dependencies, with what each resumes and takes."""
    build, fix, report = read(SAMPLE)
    assert (build.spec.text, build.spec.env["TARGET"]) == ("Build the shop with Python 3.12", "all")
    assert (fix.task, fix.spec.budget and fix.spec.budget.cost_micro_usd) == ("fix-the-shop", 2_000_000)
    assert report.spec.depends_on == (build.task, fix.task, "task-of-yesterday")
    assert (report.earlier and report.earlier.fork, report.spec.inputs[0].task) == (True, "fix-the-shop")


def test_sample_has_every_field_of_a_task() -> None:
    """It has the fields of the contract, except those that only clients set, and the fields that only a file has."""
    assert set(TaskSpec.model_fields) - INTERNAL - set(ALL) == set()
    assert {"name", "task", "after", "argv", "matrix"} <= set(ALL)


@pytest.mark.parametrize(
    ("model", "block"),
    [
        (SandboxLimits, ALL["limits"]),
        (RetryPolicy, ALL["retry"]),
        (AgentServer, ALL["agent_server"]),
        (RepositorySource, ALL["repository"]),
        (CoAuthor, ALL["co_author"]),
        (Constraints, ALL["constraints"]),
        (Continuous, ALL["continuous"]),
        (Validation, ALL["continuous"]["validation"]),
        (ResumeSource, ALL["resume"]),
    ],
)
def test_sample_has_every_field_of_a_part(model: type[BaseModel], block: Mapping[str, Any]) -> None:
    """A field that excludes another one is named beside it."""
    absent = set(model.model_fields) - set(block)
    assert absent <= EITHER
    assert all(f"`{name}: " in SAMPLE.read_text(encoding="utf-8") for name in absent)


@pytest.mark.parametrize(
    "text",
    [
        "tasks: [{text: x, argv: [a], limits: {memory: 4g}}]",
        "tasks: [{text: x, harness: claude}]",
        "tasks: [{text: x, argv: make}]",
        "tasks: [{text: x, argv: [a], wizard: 1}]",
        "task: {text: x}",
    ],
)
def test_error_of_a_task_file_names_the_page(text: str, tmp_path: Path) -> None:
    """The page shows the fields of each block."""
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    with pytest.raises(HerdError) as raised:
        read(path)
    assert "docs/task-files.md" in str(raised.value.problem.remedy)
    page = (ROOT / "docs" / "task-files.md").read_text(encoding="utf-8")
    assert SAMPLE.read_text(encoding="utf-8") in page
