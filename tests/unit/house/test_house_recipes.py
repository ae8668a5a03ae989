"""The recipes of CONTRIBUTING.md, followed step by step in a copy of the sources.

Those for a runtime and a harness are followed by `tests/integration/spawner/test_spawner_plugins.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOLDEN = "libs/sandherd/contracts/golden/v1"
CHECK_RECORDS = """
from pathlib import Path
from sandherd.contracts.records import RECORDS
from tests.contracts.test_contracts_golden import stems
from tests.contracts.test_contracts_golden import test_shared_record_is_read_and_written_unchanged as check
golden = Path("libs/sandherd/contracts/golden/v1")
assert stems(golden / "records") == RECORDS.keys(), RECORDS.keys() ^ stems(golden / "records")
for kind in RECORDS:
    check(golden, kind)
"""
TASK_EXAMPLES = (
    "-m", "pytest", "-q", "-c", os.devnull, "--import-mode=importlib", "-p", "no:cacheprovider",
    "tests/contracts/test_contracts_golden.py",
    "-k", "(shows_every_field or fits_its_schema) and (task or schedule) or never_changed",
)  # fmt: skip
"""Runs the tests of golden examples that may fail for a new field of a task."""
CHECK_SAMPLE = (
    "import tests.unit.client.test_client_task_file_page as page; page.test_sample_has_every_field_of_a_task()"
)


class Copy:
    """A copy of what the recipes change, with which programs are run; what is not edited is a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in (
            "libs/sandherd",
            "services/spawner",
            "services/event-ingest",
            "tests/unit/house",
            "tests/contracts",
            "examples/batch",
        ):
            shutil.copytree(ROOT / part, folder / part, copy_function=os.symlink)
        sample_test = Path("tests/unit/client/test_client_task_file_page.py")
        (folder / sample_test.parent).mkdir()
        (folder / sample_test).symlink_to(ROOT / sample_test)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that is there once."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.unlink()
        path.write_text(text.replace(old, new))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the copy's packages, before those that are installed."""
        folders = [self.folder, self.folder / "libs", *(self.folder / "services").iterdir(), ROOT]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def recipe(title: str) -> str:
    """The text of a recipe."""
    found = re.search(rf"\n### {title}\n(.*?)(?=\n##)", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert found, title
    return found[1]


def test_a_task_field_is_added_by_its_recipe(copy: Copy) -> None:
    """Declared, it is missed in each view; added in each, in none. The files are those that the recipe leads to."""
    assert "python -m tests.unit.house.task_fields" in recipe("Add a task field")
    check = ("-m", "tests.unit.house.task_fields")
    copy.edit(
        "libs/sandherd/contracts/specs.py",
        '    on_retry: Literal["offer", "restore"] = "offer"\n',
        "    owner: SafeName | None = Field(default=None, exclude_if=lambda owner: owner is None)\n"
        '    on_retry: Literal["offer", "restore"] = "offer"\n',
    )
    missed = copy.run(*check).stderr.splitlines()
    assert len(missed) == 7
    assert all(line.startswith("TaskSpec.owner is not in ") for line in missed)
    copy.edit(
        "libs/sandherd/cli/commands/run.py",
        "    priority: Annotated[\n",
        "    owner: str | None = None,\n    priority: Annotated[\n",
    )
    copy.edit(
        "libs/sandherd/cli/commands/run.py",
        "        priority=priority,\n",
        "        owner=owner,\n        priority=priority,\n",
    )
    copy.edit(
        "libs/sandherd/contracts/events/task.py",
        "    resumes: SafeName",
        "    owner: SafeName | None = None\n    resumes: SafeName",
    )
    copy.edit(
        "services/spawner/spawner/tasks/task_transitions.py",
        "            priority=task.spec",
        "            owner=task.spec.owner,\n            priority=task.spec",
    )
    copy.edit(
        "libs/sandherd/contracts/requests/live_state.py",
        "    waits_for: str",
        "    owner: SafeName | None = None\n    waits_for: str",
    )
    copy.edit(
        "services/spawner/spawner/tasks/task_record.py",
        "            priority=self",
        "            owner=self.spec.owner,\n            priority=self",
    )
    read_models = "services/event-ingest/event_ingest/read_models.py"
    copy.edit(
        read_models, "    retried_sequence: int = 0\n", "    owner: str | None = None\n    retried_sequence: int = 0\n"
    )
    copy.edit(
        "services/event-ingest/event_ingest/batch_statements.py", '"text", "harness"', '"owner", "text", "harness"'
    )
    migrations = copy.folder / "services/event-ingest/event_ingest/migrations"
    number = int(max(path.name for path in migrations.glob("*.sql"))[:4]) + 1
    (migrations / f"{number:04}_owner.before.sql").write_text("alter table tasks add column owner text;\n")
    copy.edit(
        "services/event-ingest/event_ingest/queries/tasks_and_sandboxes.py",
        "        priority=row",
        '        owner=row["owner"],\n        priority=row',
    )
    copy.edit(
        "tests/unit/house/task_fields.py", '("linger_seconds", "priority",', '("owner", "linger_seconds", "priority",'
    )
    done = copy.run(*check)
    assert (done.returncode, done.stderr) == (0, "")
    add_to_examples(copy)


def add_to_examples(copy: Copy) -> None:
    """Follow the last step: the field is set in the golden examples that fail without it, and in the sample.

    `make docs` is run by the test of the recipe for an event.
    """
    failed = copy.run(*TASK_EXAMPLES).stdout
    lacking = {
        f"{folder}/{name}.json"
        for kind, folder in (
            ("event", "events"),
            ("command", "commands"),
            ("request", "requests"),
            ("reply", "replies"),
        )
        for name in re.findall(rf"^FAILED \S+::test_(?:an?_)?{kind}_\w+\[(\S+)\]", failed, re.MULTILINE)
    }
    assert {"commands/spawner.submit_task.json", "events/task.submitted.json"} < lacking, failed
    for name in lacking:
        example = copy.folder / GOLDEN / name
        document = json.loads(example.read_text())
        set_owner(document)
        example.unlink()
        example.write_text(json.dumps(document, indent=2) + "\n")
    (copy.folder / GOLDEN / "SHA256SUMS").unlink()
    subprocess.run("sha256sum */*.json > SHA256SUMS", shell=True, cwd=copy.folder / GOLDEN, check=True)
    checked = copy.run(*TASK_EXAMPLES)
    assert checked.returncode == 0, checked.stdout
    assert copy.run("-c", CHECK_SAMPLE).returncode != 0
    copy.edit("examples/batch/all-fields.yaml", "    kind: change #", "    owner: ada\n    kind: change #")
    assert copy.run("-c", CHECK_SAMPLE).returncode == 0


def set_owner(value: object) -> None:
    """Set the new field in each specification and view of a task in a document."""
    if isinstance(value, dict):
        for item in list(value.values()):
            set_owner(item)
        if "priority" in value:
            value["owner"] = "ada"
    elif isinstance(value, list):
        for item in value:
            set_owner(item)


def test_a_record_is_added_by_its_recipe(copy: Copy) -> None:
    """Without an example it is missed; with one that has every field set it is read and written unchanged."""
    steps = recipe("Add a key-value record")
    assert "RECORDS" in steps
    assert f"{GOLDEN}/records" in steps
    copy.edit(
        "libs/sandherd/contracts/records.py",
        'RECORDS: dict[str, type[SharedRecord]] = {\n    "budget_blocks": ',
        "class SharedPoolRecord(SharedRecord):\n"
        '    """A warm sandbox."""\n\n'
        '    bucket: ClassVar[str] = "pool"\n\n    state: str = "requested"\n    task: SafeName | None = None\n\n\n'
        'RECORDS: dict[str, type[SharedRecord]] = {\n    "pool": SharedPoolRecord,\n    "budget_blocks": ',
    )
    assert "AssertionError: {'pool'}" in copy.run("-c", CHECK_RECORDS).stderr
    example = copy.folder / GOLDEN / "records" / "pool.json"
    example.write_text(json.dumps({"state": "ready"}))
    assert copy.run("-c", CHECK_RECORDS).returncode != 0
    example.write_text(json.dumps({"state": "ready", "task": "task-1"}))
    done = copy.run("-c", CHECK_RECORDS)
    assert (done.returncode, done.stderr) == (0, "")
