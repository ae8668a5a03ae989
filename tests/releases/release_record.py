"""The record of the last release: its examples and schemas of every contract, its migrations, and its commit.

    python -m tests.releases.release_record COMMIT

records another release, as `make freeze` does. This module imports no package of ours.
"""

import hashlib
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.releases.archived import archived, whole_name

RECORDED: Final = Path(__file__).with_name("last.json")
SCHEMAS: Final = Path(__file__).with_name("last_schemas.json")
_SCHEMAS: Final = "docs/schemas/v1/"
_GOLDEN: Final = "libs/sandherd/contracts/golden/v1/"
_MIGRATIONS: Final = "services/event-ingest/event_ingest/migrations/"
_PROJECT: Final = "libs/pyproject.toml"
_NUMBER: Final = re.compile(r"(\d{4})_.*\.sql$")


@dataclass(frozen=True)
class Release:
    """What was released."""

    version: str
    commit: str
    migrations: dict[int, str]
    """The checksums of its migrations, by number."""
    examples: dict[str, Any]
    """Its golden examples, by path, as `events/agent.usage`."""

    def of_kind(self, folder: str) -> dict[str, Any]:
        """The examples of a folder, by name."""
        return {path.split("/")[1]: one for path, one in self.examples.items() if path.startswith(f"{folder}/")}


@cache
def last_release() -> Release:
    """The one that is kept."""
    recorded = json.loads(RECORDED.read_text())
    return Release(
        **recorded | {"migrations": {int(number): digest for number, digest in recorded["migrations"].items()}}
    )


def release_of(commit: str) -> Release:
    """What a commit released. Raises `NoHistoryError`."""
    commit = whole_name(commit)
    files = dict(archived(commit, _GOLDEN, _MIGRATIONS, _PROJECT))
    migrations = {
        int(found[1]): hashlib.sha256(text).hexdigest()
        for path, text in files.items()
        if path.startswith(_MIGRATIONS) and (found := _NUMBER.search(path))
    }
    examples = {
        path.removeprefix(_GOLDEN).removesuffix(".json"): json.loads(text)
        for path, text in files.items()
        if path.startswith(_GOLDEN) and path.endswith(".json")
    }
    return Release(tomllib.loads(files[_PROJECT].decode())["project"]["version"], commit, migrations, examples)


def schemas_of(commit: str) -> dict[str, Any]:
    """The JSON Schemas that a commit released, by name. Raises `NoHistoryError`."""
    files = archived(whole_name(commit), _SCHEMAS)
    return {path.removeprefix(_SCHEMAS).removesuffix(".json"): json.loads(text) for path, text in files}


def lines_of(schemas: dict[str, Any]) -> str:
    """The document, a schema in each line."""
    lines = (f" {json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in sorted(schemas.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def written(release: Release) -> str:
    """The document, an example in each line."""
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(one)}" for path, one in sorted(release.examples.items()))
    head = {"version": release.version, "commit": release.commit, "migrations": release.migrations}
    return json.dumps(head, indent=1)[:-2] + f',\n "examples": {{\n{lines}\n }}\n}}\n'


if __name__ == "__main__":
    RECORDED.write_text(written(release_of(sys.argv[1])))
    SCHEMAS.write_text(lines_of(schemas_of(sys.argv[1])), encoding="utf-8")
