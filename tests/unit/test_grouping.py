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
LONG = "tests/e2e/test_readme.py::test_shell_blocks_of_documents_succeed[README.md]"
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
import os
import signal
from pathlib import Path
from tests.forked_run import run_in_forks
from tests.grouping import start_order
def pytest_addoption(parser): parser.addoption("--processes", type=int)
def pytest_collection_modifyitems(items): items.sort(key=lambda item: start_order(item.nodeid))
def pytest_runtestloop(session):
    return run_in_forks(session, session.config.option.processes, lambda: None, lambda: print("ended", os.getpid()))
"""


def run(folder: Path, processes: int, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of the tests below a folder by so many processes."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\n")
    words = ["--processes", str(processes), *options, "-p", "no:cacheprovider", "tests"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def ran(folder: Path, processes: int) -> list[str]:
    """The files of the tests in the order in which they were reported, by this many processes."""
    for name, count in (("unit/test_many.py", 40), ("integration/test_few.py", 5), ("faults/test_late.py", 1)):
        write(folder / "tests" / name, f"@pytest.mark.parametrize('n', range({count}))\ndef test_it(n): pass\n")
    done = run(folder, processes, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ended") == processes
    return re.findall(r"PASSED tests/\w+/(\w+)\.py", done.stdout)


def write(file: Path, text: str) -> None:
    """A file of tests."""
    file.parent.mkdir(parents=True)
    file.write_text(f"import os\nimport signal\nimport pytest\n{text}")


def test_every_test_is_run_once_by_several_processes(tmp_path: Path) -> None:
    """Units of one and of many tests, by two processes."""
    assert Counter(ran(tmp_path, 2)) == {"test_many": 40, "test_few": 5, "test_late": 1}


def test_units_begin_in_the_order_of_their_tests(tmp_path: Path) -> None:
    """Not with the units of most tests."""
    assert ran(tmp_path, 1) == ["test_late"] + 5 * ["test_few"] + 40 * ["test_many"]


FAILING = """
FIXTURES = []
@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    FIXTURES.append(tmp_path_factory.mktemp("shared"))
    yield FIXTURES
    print("shared fixture ended")
def test_one(shared): pass
def test_two(shared, capfd):
    os.system("echo captured")
    assert (len(shared), capfd.readouterr().out) == (1, "captured\\n")
def test_fails(shared):
    os.system("echo shown to a reader")
    assert not shared
def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_of_the_same_file_follows(shared): assert len(shared) == 1
def test_is_skipped(): pytest.skip("for a reason")
"""


def test_failed_and_killed_tests_are_reported_and_all_others_run(tmp_path: Path) -> None:
    """With what they printed; fixtures are shared within a process and end with it, and its files are its own."""
    write(tmp_path / "tests" / "unit" / "test_failing.py", FAILING)
    write(tmp_path / "tests" / "integration" / "test_beside.py", "def test_passes(tmp_path): pass\n")
    done = run(tmp_path, 2, "-rs")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed, 1 skipped" in done.stdout
    assert "shown to a reader" in done.stdout
    assert "test_is_killed ended with status -9" in done.stdout
    assert "for a reason" in done.stdout
