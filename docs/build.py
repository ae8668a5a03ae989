"""Generates documents from the code. With `--check` it writes nothing and fails if a document is stale."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import alerts
import architecture_diagrams
import chart
import cluster
import commands_page
import conductor_page
import dashboards
import event_facts
import failures_page
import harnesses_page
import herd_page
import image_contents
import pages
import redaction_page
import repositories_page
import rules_page
import runtimes_page
import sizing_page
import sql_page
import sync_client
import task_files_page
import telemetry_page

from gateway.application import document as api_document
from sandherd.contracts import asyncapi, schemas
from spawner.runtimes.kubernetes import rbac

ROOT: Final = Path(__file__).parent.parent

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "subjects.md": pages.subjects,
    "events.md": pages.events,
    "states.md": pages.states_page,
    "errors.md": failures_page.errors,
    "commands.md": commands_page.commands,
    "herd.md": herd_page.herd,
    "harnesses.md": harnesses_page.harnesses,
    "task-files.md": task_files_page.task_files,
    "runtimes.md": runtimes_page.runtimes,
    "configuration.md": pages.configuration,
    "telemetry.md": telemetry_page.telemetry,
    "permissions.md": pages.rights,
    "sizing.md": sizing_page.sizing,
    "redaction.md": redaction_page.redaction,
    "monitor.md": rules_page.monitor,
}
BLOCKS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "docs/wire.md": {"commands": pages.command_table},
    "docs/architecture.md": architecture_diagrams.BLOCKS,
    "docs/conductor.md": {
        "ignored": conductor_page.ignored,
        "numbers": conductor_page.numbers,
        "weights": conductor_page.weights,
    },
    "docs/sql.md": {"views": sql_page.views},
    "docs/repositories.md": {"prefixes": repositories_page.prefixes},
}
"""The generated parts of handwritten pages, between `<!-- name:begin -->` and `<!-- name:end -->`."""


def documents() -> dict[Path, str]:
    """All documents, with their contents."""
    docs = ROOT / "docs"
    made = {docs / name: make() for name, make in PAGES.items()}
    made[docs / "asyncapi.json"] = as_json(asyncapi.document())
    made[docs / "openapi.json"] = as_json(api_document())
    for role in asyncapi.ROLES:
        made[docs / "asyncapi" / f"{role}.json"] = as_json(asyncapi.role_document(role))
    for name, schema in schemas.json_schemas().items():
        made[docs / "schemas" / "v1" / f"{name}.json"] = as_json(schema)
    made[ROOT / "deploy" / "kubernetes" / "role.yaml"] = rbac.document()
    made[ROOT / "deploy" / "images" / "service" / "contents.json"] = as_json(image_contents.contents())
    made |= cluster.documents()
    made |= dashboards.documents()
    made |= alerts.documents()
    made |= sync_client.documents()
    made |= event_facts.documents()
    made |= rules_page.documents()
    made |= chart.documents(made)
    for name, blocks in BLOCKS.items():
        made[ROOT / name] = refreshed((ROOT / name).read_text(encoding="utf-8"), name, blocks)
    return made


def as_json(document: Mapping[str, Any]) -> str:
    """JSON, formatted to be readable."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def refreshed(text: str, page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """A page with its blocks generated again. Raises `ValueError` if a marker is missing."""
    for name, make in blocks.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} lacks {begin.strip()} and {end}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


def stale(made: Mapping[Path, str]) -> list[Path]:
    """The stale documents: those that have changed, and those that are no longer generated."""
    changed = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    folders = (ROOT / "docs" / "schemas", dashboards.FOLDER)
    return changed + [path for folder in folders for path in folder.rglob("*.json") if path not in made]


def main(arguments: list[str]) -> int:
    """Write the documents. With `--check`, only check them, and return 1 if one is stale."""
    made = documents()
    found = stale(made)
    if arguments == ["--check"]:
        for path in found:
            print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
        return 1 if found else 0
    for path in found:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        else:
            path.unlink()
    # The table was imported before it was written: labels, settings and pages are generated from it.
    return subprocess.run([sys.executable, __file__], check=False).returncode if rules_page.TABLE in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
