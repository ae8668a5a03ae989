"""The check of the history's database, by the report of event-ingest and by a request for the history."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sandherd.client.doctor.check import Check, CheckState
from sandherd.contracts.requests import DATABASE, Part, PartKind

CHECK_NAME: Final = "database"
REMEDY: Final = (
    "check that Postgres runs, responds there and has all its files, and see its log; until then events wait at the "
    "broker, and nothing is lost"
)
_UNAVAILABLE_TEXT: Final = "database is unavailable"
"""The text in a refusal of event-ingest if the database did not execute the request."""


def is_database(part: Part) -> bool:
    """Whether the part is event-ingest's connection to the database."""
    return part.kind is PartKind.READINESS and part.name == DATABASE


def check_database(parts: Iterable[Part], *, reported: bool) -> Iterator[Check]:
    """The check of the database. `reported` states whether event-ingest has replied; if not, the state is unknown."""
    for part in filter(is_database, parts):
        if part.problem:
            yield Check(CHECK_NAME, CheckState.WRONG, part.problem, REMEDY)
        else:
            yield Check(CHECK_NAME, CheckState.RIGHT, f"{part.detail} responds" if part.detail else "responds")
    if not reported:
        yield Check(CHECK_NAME, CheckState.UNKNOWN, "event-ingest, which reports on it, does not reply", REMEDY)


def with_failed_requests(checks: Sequence[Check]) -> list[Check]:
    """The checks, with an error for a database that responds but does not execute requests for the history. Pure."""
    failed = [check.found for check in checks if check.name == "history" and _UNAVAILABLE_TEXT in check.found]
    return [
        replace(check, state=CheckState.WRONG, found=f"{check.found}, but requests fail: {failed[0]}", remedy=REMEDY)
        if failed and check.name == CHECK_NAME and check.state is CheckState.RIGHT
        else check
        for check in checks
    ]
