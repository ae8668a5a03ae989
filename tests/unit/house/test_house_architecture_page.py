"""docs/architecture.md: the files it names exist, and the paths that it shows are short.

tests/integration/worker/test_worker_event_path.py compares the path of an event with the files that really run.
"""

import re

import grimp
import pytest

from docs import architecture_paths
from docs.architecture_paths import PAGE, ROOT, Step, located

MOST_OF_EVENT = 18
MOST_WITH_DRIVER = 22
MOST_OF_TASK = 40
PACKAGES = ("sandherd", "spawner", "sandherd_network", "event_ingest", "sandherd_worker", "sandherd_drivers")


def test_every_file_on_the_page_exists() -> None:
    """Each Python file that the page names is there; so is each folder of the table of parts."""
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]+\.py)`", text)) | set(re.findall(r"`((?:libs|services)/[a-z_/-]+)`", text))
    assert {name for name in named if not (ROOT / located(name)).exists()} == set()


def test_paths_are_short() -> None:
    """An event passes at most 18 files from its line to its row, 22 with a driver; a task 40 until its agent starts."""
    assert architecture_paths.passed(architecture_paths.event_from_line()) <= MOST_OF_EVENT
    assert architecture_paths.passed(architecture_paths.steps("an event")) <= MOST_WITH_DRIVER
    assert architecture_paths.passed(architecture_paths.steps("a task")) <= MOST_OF_TASK


@pytest.mark.parametrize("path", ["an event", "a task"])
def test_a_file_imports_what_the_page_says_that_it_uses(path: str) -> None:
    """A file is listed beside the file that calls it, or beside another one that this calls."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    assert [(step.file, used) for step in architecture_paths.steps(path) for used in unknown(step, graph)] == []


def unknown(step: Step, graph: grimp.ImportGraph) -> list[str]:
    """The files that the page lists for a step, and that neither it nor a file that it uses imports."""
    users = map(module_of, (step.file, *step.uses))
    imported = set().union(*(graph.find_modules_directly_imported_by(module) for module in users))
    return [file for file in step.uses if module_of(file) not in imported]


def module_of(file: str) -> str:
    """`services/monitor/monitor/rules.py` as `monitor.rules`."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts[1:] if parts[0] == "libs" else parts[2:])
