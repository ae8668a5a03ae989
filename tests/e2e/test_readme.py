"""The commands in README and docs are run, document by document, as a reader would run them.

A fenced block tagged `sh` is run; one tagged `console` only shows output. The blocks of a document are one shell
session, in order, from the root of the repository. README starts and ends its own stack; the other documents share one,
which their `up` finds running, and which the last document ends.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preloaded_cli import preloaded_sandherd

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH_OF_COMMAND = re.compile(r"^\.venv/bin/sandherd\b", re.MULTILINE)
LEFT_OUT = {
    "make test": "it is what runs this test",
    ".ci/run": "it is what runs this test",
    "make demo": "tests/e2e/test_demo.py runs it",
}
LIMIT = 840.0
EXAMPLE = "build/binomial"
"""The repository that the first example of README creates."""


def blocks(document: Path) -> list[str]:
    """The commands of a document, block by block, without those of `LEFT_OUT`."""
    found = FENCE.findall(document.read_text(encoding="utf-8"))
    return ["".join(line for line in block.splitlines(True) if command(line) not in LEFT_OUT) for block in found]


def command(line: str) -> str:
    """A line without its comment."""
    return line.partition(" #")[0].strip()


def session(document: Path, goes_on: bool) -> str:
    """One script of all blocks, which prints each block's name first. `goes_on`: its `sandherd down` does nothing.

    The command is a fork: other tests test its cold start.
    """
    program = f'"{preloaded_sandherd()}" "$@"'
    body = f'if test "$1" != down; then {program}; fi' if goes_on else program
    forked = f"sandherd() {{ {body}; }}; export -f sandherd\n"
    numbered = enumerate(blocks(document), 1)
    numbered_blocks = "".join(f"echo '=== block {number}' >&2\n{block}" for number, block in numbered)
    return f"set -euo pipefail\n{forked}{PATH_OF_COMMAND.sub('sandherd', numbered_blocks)}"


def surroundings(home: Path) -> dict[str, str]:
    """A reader's environment: without the variables that an outer make passes to an inner one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | {
        "SANDHERD_HOME": str(home)
    }


README = ROOT / "README.md"
DOCUMENTS = [path for path in sorted((ROOT / "docs").glob("*.md")) if "".join(blocks(path))]


@pytest.fixture
def home() -> Iterator[Path]:
    """A stack home; not `tmp_path`, whose parents another pytest closes to the user of Postgres."""
    directory = Path(tempfile.mkdtemp(prefix="home-"))
    yield directory
    subprocess.run([preloaded_sandherd(), "down"], env=surroundings(directory), check=False, capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)


def run(document: Path, home: Path, *, goes_on: bool = False) -> None:
    """Run the commands of a document. Raises `AssertionError` with their output if one fails."""
    environment = surroundings(home)
    if EXAMPLE in document.read_text(encoding="utf-8"):  # only then: other documents run at the same time
        shutil.rmtree(ROOT / EXAMPLE, ignore_errors=True)
    # A separate session, so that a document that hangs can be ended with all its processes.
    shell = subprocess.Popen(
        ["bash", "-c", session(document, goes_on)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        output = shell.communicate()[0] + f"\nstill running after {LIMIT:g} s"
    assert shell.returncode == 0, f"{document.name}:\n{output}"


@pytest.mark.e2e
@pytest.mark.timeout(LIMIT + 60)
def test_shell_blocks_of_readme_succeed(home: Path) -> None:
    """Every command block of README exits with status 0."""
    run(README, home)


@pytest.mark.e2e
@pytest.mark.timeout(2 * LIMIT)
def test_shell_blocks_of_documents_succeed(home: Path) -> None:
    """Every command block of each other document exits with status 0, and the last `down` ends the stack."""
    for document in DOCUMENTS:
        run(document, home, goes_on=document != DOCUMENTS[-1])
    assert not list((home / "run").glob("*.pid"))


def test_every_code_fence_has_a_known_tag() -> None:
    """The tests do not run a block without a tag, or with the tag `bash`."""
    known = {"sh", "console", "python", "json", "yaml", "toml", "text", "mermaid", "js", "sql", "dockerfile"}
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        tags = re.findall(r"^```(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
        # After the language a block may have a name, by which a test finds it.
        assert {tag.partition(" ")[0] for tag in tags[::2]} <= known, document.name
