"""The recipe of CONTRIBUTING for a new event is followed, as it is written, in a copy of the sources."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
COPIED: Final = (
    "libs",
    "docs",
    "deploy",
    "examples/batch",
    "examples/herd",
    "tests/contracts",
    "README.md",
    "docker-compose.yml",
    "pyproject.toml",
)
"""Read by the generator of documents and the tests of golden examples."""
CONTRACTS: Final = "libs/sandherd/contracts"
READ: Final = """
import json, sys
from sandherd.contracts.decoder import read_event
from sandherd_worker.harnesses.event_lines import may_emit
from sandherd.contracts.subjects import event_subject

name, document = sys.argv[1], open(sys.argv[2], "rb").read()
example = json.loads(document)
data = read_event(event_subject(example["project"], example["subject"], name), document).data
print(json.dumps([type(data).__name__, data.summarize(), may_emit(name, "agent"), may_emit(name, "driver")]))
"""


def blocks_below(heading: str) -> dict[str, str]:
    """The blocks of code in a section of CONTRIBUTING, by language."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.split(r"^##+ ", text.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    return {language: dedent(block) for language, block in blocks}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources."""
    for name in COPIED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
        else:
            shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def run(copy: Path, *command: str) -> str:
    """The output of a command that runs with the packages of the copy."""
    env = os.environ | {"PYTHONPATH": str(copy / "libs"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_docs() -> str:
    """The command behind `make docs`, with this Python."""
    line = re.search(r"^docs: .*\n\t@\$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line
    return f"{sys.executable} {line[1]}"


def write_example(copy: Path, name: str, data: str) -> Path:
    """A golden example as the recipe says: a copy of another, with its own type and data."""
    events = copy / CONTRACTS / "golden" / "v1" / "events"
    other: dict[str, Any] = json.loads((events / "agent.waiting.json").read_text())
    example = other | {"type": name, "dataschema": f"urn:sandherd:v1:{name}", "data": json.loads(data)}
    path = events / f"{name}.json"
    path.write_text(json.dumps(example, indent=2) + "\n")
    return path


def test_an_event_is_added_by_a_class_an_example_and_make_docs(copy: Path) -> None:
    """The event is then in the catalogue, the schemas and the AsyncAPI document, and is refused from agents."""
    blocks = blocks_below("### Add an event") | blocks_below("## Contracts")
    name = re.findall(r'"(agent\.\w+)"', blocks["python"])[0]
    with (copy / CONTRACTS / "events" / "agent.py").open("a") as module:
        module.write("\n\n" + blocks["python"])
    example = write_example(copy, name, blocks["json"])
    for line in blocks["console"].splitlines():
        run(copy, "sh", "-c", line.removeprefix("$ ").replace("make docs", make_docs()))

    selected = f"{name} or every_type_has_an_example or never_changed"
    plain = ("-q", "-c", os.devnull, "--rootdir", str(copy), "-p", "no:cacheprovider")
    checked = run(
        copy, sys.executable, "-m", "pytest", *plain, "tests/contracts/test_contracts_golden.py", "-k", selected
    )
    assert re.search(r"^6 passed", checked, re.MULTILINE), checked
    assert f"[`{name}`](schemas/v1/{name}.json)" in (copy / "docs/events.md").read_text()
    assert (copy / f"docs/schemas/v1/{name}.json").is_file()
    channels = json.loads((copy / "docs/asyncapi.json").read_text())["channels"]
    assert name in channels["event.agent"]["messages"]
    model = re.findall(r"class (\w+)", blocks["python"])[0]
    read = json.loads(run(copy, sys.executable, "-c", READ, name, str(example)))
    assert read == [model, "for 20 s", False, False]
