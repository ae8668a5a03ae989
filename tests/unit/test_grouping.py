"""How tests are handed to the processes of a run."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.grouping import FIRST, start_order, unit_of

ROOT = Path(__file__).parents[2]
SHORT = "tests/unit/bus/test_a.py::test_x[1]"
LONG = "tests/e2e/test_readme.py::test_shell_blocks_of_readme_succeed"
DOCKER = "tests/e2e/docker/test_docker_line.py::test_x"
OTHER = "tests/integration/bus/test_a.py::test_x"


def test_what_takes_longest_begins_first() -> None:
    """Groups, then the tests that are listed, then all others in the order in which they were collected."""
    assert sorted([OTHER, SHORT, LONG, DOCKER], key=start_order) == [DOCKER, LONG, OTHER, SHORT]
    assert start_order(OTHER) == start_order(SHORT)


def test_listed_tests_exist() -> None:
    """A file that was renamed would begin late again."""
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [called.pattern for called in FIRST if not any(map(called.match, files))] == []


def test_short_tests_of_a_file_are_handed_out_together() -> None:
    """Any other test is alone, unless it belongs to a group."""
    assert unit_of(SHORT) == "tests/unit/bus/test_a.py"
    assert (unit_of(OTHER), unit_of(DOCKER)) == (OTHER, "docker")


CONFTEST = """
from tests.grouping import ByGroup, start_order
def pytest_xdist_make_scheduler(config, log): return ByGroup(config, log)
def pytest_collection_modifyitems(items): items.sort(key=lambda item: start_order(item.nodeid))
"""


def ran(folder: Path, processes: int) -> list[str]:
    """The files of the tests in the order in which they were reported, by this many processes."""
    for name, count in (("unit/test_many.py", 40), ("integration/test_few.py", 5), ("faults/test_late.py", 1)):
        file = folder / "tests" / name
        file.parent.mkdir(parents=True)
        file.write_text(f"import pytest\n@pytest.mark.parametrize('n', range({count}))\ndef test_it(n): pass\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\n")
    words = ["-p", "xdist", "-n", str(processes), "--dist", "loadgroup", "-v", "-p", "no:cacheprovider", "tests"]
    command = [sys.executable, "-m", "pytest", *words]
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"PASSED tests/\w+/(\w+)\.py", done.stdout)


def test_every_test_is_run_once_by_several_processes(tmp_path: Path) -> None:
    """Units of one and of many tests, by two processes."""
    assert Counter(ran(tmp_path, 2)) == {"test_many": 40, "test_few": 5, "test_late": 1}


def test_units_begin_in_the_order_of_their_tests(tmp_path: Path) -> None:
    """Not with the units of most tests, as xdist would begin."""
    assert ran(tmp_path, 1) == ["test_late"] + 5 * ["test_few"] + 40 * ["test_many"]
