"""The recipe of CONTRIBUTING for a rule of the monitor is followed, as it is written, in a copy of the sources."""

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

from sandherd.contracts.monitor_rules import GUARDIAN

ROOT: Final = Path(__file__).parents[3]
RULES: Final = "services/monitor/monitor/rules"
TABLE: Final = "libs/sandherd/contracts/monitor_rules.py"
GENERATE: Final = """
import rules_page
[text] = rules_page.documents().values()
print(text, end="")
"""
READ: Final = """
import json, rules_page
from dashboards import Panel, _description
from monitor.event_decoder import READ
from monitor.rule_settings import rule_set_of
from sandherd.settings import Settings, load
from sandherd.telemetry import labels

schema = Settings.model_json_schema()["properties"]["rules"]["properties"]
print(json.dumps({
    "labels": sorted(labels.STEERING.values),
    "read": "agent.waiting" in READ,
    "schema": schema["quiet"]["anyOf"][0]["properties"],
    "set": rule_set_of(load(environ={"SANDHERD_RULES": "quiet.waits=3"}).settings).thresholds["quiet"].waits,
    "page": rules_page.monitor(),
    "panel": _description(Panel(title="t", says="s.", queries={"a": "b"}, rules="guardian")),
}))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the recipe changes, in which files are links, and the rules without the compiled ones."""
    for part in ("libs/sandherd", "services/monitor/monitor", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, copy_function=os.symlink, ignore=ignored)
    return tmp_path


def run(copy: Path, program: str) -> str:
    """The output of a program that runs with the packages of the copy."""
    folders = [copy / "libs", copy / "services/monitor", copy / "docs"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def recipe() -> str:
    found = re.search(
        r"\n### Add a rule of the monitor\n(.*?)(?=\n### )", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    assert found
    return found[1]


def test_a_rule_is_added_by_one_module_and_make_docs(copy: Path) -> None:
    """The registry finds it; settings, labels, the decoder, the page and dashboards then have it."""
    [block] = re.findall(r"^ *```python\n(.*?)^ *```$", recipe(), re.MULTILINE | re.DOTALL)
    [name] = re.findall(r"For example `(\w+)\.py`", recipe())
    (copy / RULES / f"{name}.py").write_text(dedent(block))
    table = run(copy, GENERATE)
    (copy / TABLE).unlink()
    (copy / TABLE).write_text(table)
    read: dict[str, Any] = json.loads(run(copy, READ))
    assert read["labels"] == sorted([*GUARDIAN, "quiet"])
    assert read["read"]
    assert read["schema"]["waits"] == {
        "description": "Number of consecutive `agent.waiting` events.",
        "type": "integer",
        "minimum": 1,
    }
    assert read["set"] == 3
    assert (
        "| `quiet.waits` | 20 | events | at least 1 | Number of consecutive `agent.waiting` events. |" in read["page"]
    )
    assert read["panel"] == f"s. The rules: {', '.join(GUARDIAN)}, quiet (docs/monitor.md)."
