"""Writes the documents that are made from the code. With `--check` it writes nothing and fails if one is stale."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import alerts
import chart
import cluster
import dashboards
import failures_page
import harnesses_page
import image_contents
import pages
import redaction_page
import runtimes_page
import sizing_page
import telemetry_page

from sandherd.contracts import asyncapi, schemas
from spawner.runtimes.kubernetes import rights

ROOT: Final = Path(__file__).parent.parent

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "subjects.md": pages.subjects,
    "events.md": pages.events,
    "states.md": pages.states_page,
    "errors.md": failures_page.errors,
    "harnesses.md": harnesses_page.harnesses,
    "runtimes.md": runtimes_page.runtimes,
    "configuration.md": pages.configuration,
    "telemetry.md": telemetry_page.telemetry,
    "permissions.md": pages.rights,
    "sizing.md": sizing_page.sizing,
    "redaction.md": redaction_page.redaction,
}
BLOCKS: Final[Mapping[str, Callable[[], str]]] = {"subjects": pages.subject_table}
"""What stands in the README between `<!-- name:begin -->` and `<!-- name:end -->`."""


def documents() -> dict[Path, str]:
    """Every document and what should stand in it."""
    docs = ROOT / "docs"
    made = {docs / name: make() for name, make in PAGES.items()}
    made[docs / "asyncapi.json"] = as_json(asyncapi.document())
    for name, schema in schemas.json_schemas().items():
        made[docs / "schemas" / "v1" / f"{name}.json"] = as_json(schema)
    made[ROOT / "deploy" / "kubernetes" / "role.yaml"] = rights.document()
    made[ROOT / "deploy" / "images" / "service" / "contents.json"] = as_json(image_contents.contents())
    made |= cluster.documents()
    made |= dashboards.documents()
    made |= alerts.documents()
    made |= chart.documents(made)
    readme = ROOT / "README.md"
    made[readme] = refreshed(readme.read_text(encoding="utf-8"))
    return made


def as_json(document: Mapping[str, Any]) -> str:
    """JSON for people too."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def refreshed(text: str) -> str:
    """The README with its blocks made anew. Raises `ValueError` if a marker is missing."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"README.md lacks {begin.strip()} and {end}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


def stale(made: Mapping[Path, str]) -> list[Path]:
    """The documents that are not what they should be, and those that nothing makes any more."""
    changed = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    folders = (ROOT / "docs" / "schemas", chart.CHART / "files" / "dashboards", dashboards.SOURCES / "dashboards")
    return changed + [path for folder in folders for path in folder.rglob("*.json") if path not in made]


def main(arguments: list[str]) -> int:
    """Write, or with `--check` only look; 1 if something is stale."""
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
