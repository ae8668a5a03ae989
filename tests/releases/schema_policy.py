"""Whether today's schemas are compatible with those of the last release; `make check` runs it.

python -m tests.releases.schema_policy
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.schemas import json_schemas
from tests.releases.release_record import SCHEMAS
from tests.releases.schema_changes import Change, Schema, not_accepted

_POLICY: Final = "docs/wire.md, Compatibility"
_NAMES: Final = "another pattern than ^[A-Za-z_][A-Za-z0-9_]{0,127}$"


@dataclass(frozen=True)
class Break:
    """A difference that the policy does not permit."""

    schema: str
    change: Change
    by: str
    """Whose documents are not accepted: `old`, by today's readers; `new`, by readers of the last release."""

    def __str__(self) -> str:
        reader = "readers of the last release do" if self.by == "new" else "this version does"
        return f"{self.schema}: {reader} not accept in {self.change}"


@dataclass(frozen=True)
class Accepted:
    """A difference that was accepted nevertheless. To be removed at the next `make freeze`."""

    schema: str
    change: str
    by: str
    reason: str

    def covers(self, found: Break) -> bool:
        """Whether this is the difference."""
        return fnmatchcase(found.schema, self.schema) and (str(found.change), found.by) == (self.change, self.by)


ACCEPTED: Final = (
    Accepted("*.reply", "ok: its absence", "old", "a reply always had one of its fields"),
    Accepted("*.reply", "ok: the type null", "old", "no service sent `null`"),
    Accepted("*.reply", "error: the type null", "old", "no service sent `null`"),
    Accepted("*.reply", "error.code: the value 'busy'", "new", "a client of 0.1 reports it as an invalid reply"),
    Accepted("event-ingest.dead.reply", "ok.letters[].reason.code: the value 'busy'", "new", "the same"),
    Accepted("problem", "code: the value 'busy'", "new", "the same"),
    Accepted("spawner.*", f"spec.secret_env[]: {_NAMES}", "old", "the pattern also permits small letters"),
    Accepted("spawner.submit_task", f"spec.harness.mcp_servers.*.secret_env[]: {_NAMES}", "old", "the same"),
)


def breaks(released: Mapping[str, Schema], today: Mapping[str, Schema]) -> list[Break]:
    """All differences that the policy does not permit.

    Old documents have to be accepted: events are stored, and the other side may be of the last release. New ones have
    to be accepted by old readers, which ignore further fields; but no command or request: their old readers refuse
    what they can't do, and nothing is sent that was not set.
    """
    found = [
        Break(name, Change("", "anything: it is no longer published"), "old") for name in released if name not in today
    ]
    for name in released.keys() & today.keys():
        old, new = released[name], today[name]
        found += [Break(name, change, "old") for change in not_accepted(new, old, ignores_unknown=False)]
        if name not in COMMANDS and not name.endswith(".request"):
            found += [Break(name, change, "new") for change in not_accepted(old, new, ignores_unknown=True)]
    return sorted(found, key=str)


def released_schemas() -> dict[str, Any]:
    """The schemas of the last release, by name."""
    schemas: dict[str, Any] = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    return schemas


def problems(released: Mapping[str, Schema], today: Mapping[str, Schema]) -> list[str]:
    """What has to be changed: the differences that were not accepted, and what was accepted and no longer exists."""
    found = breaks(released, today)
    left = [str(one) for one in found if not any(accepted.covers(one) for accepted in ACCEPTED)]
    stale = [one for one in ACCEPTED if not any(one.covers(each) for each in found)]
    return left + [f"{one.schema}: {one.change!r} is accepted in schema_policy.py and no difference" for one in stale]


if __name__ == "__main__":
    wrong = problems(released_schemas(), json_schemas())
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(f"The schemas are not compatible with the last release ({_POLICY})")
