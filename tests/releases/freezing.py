"""The last release as it is kept here: its examples of every contract, its migrations, and where its code is.

    python -m tests.releases.freezing COMMIT

puts down another one, which `make freeze` does at a release. No package of ours is imported.
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

KEPT: Final = Path(__file__).with_name("last.json")
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
    kept = json.loads(KEPT.read_text())
    return Release(**kept | {"migrations": {int(number): digest for number, digest in kept["migrations"].items()}})


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


def written(release: Release) -> str:
    """The document, an example in each line."""
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(one)}" for path, one in sorted(release.examples.items()))
    head = {"version": release.version, "commit": release.commit, "migrations": release.migrations}
    return json.dumps(head, indent=1)[:-2] + f',\n "examples": {{\n{lines}\n }}\n}}\n'


if __name__ == "__main__":
    KEPT.write_text(written(release_of(sys.argv[1])))
