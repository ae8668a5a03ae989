"""The limit of a project in the artifact store: what would be beyond it waits in its stream."""

from typing import Any, Final

from event_ingest.database import Connection

_BYTES: Final = "select coalesce(sum(bytes), 0)::bigint from artifact_contents where project = $1"
# Another artifact may be removed until then. After a week the stream has it no longer.
_WAIT: Final = """
update artifacts set problem = $5, over_limit = true, next_try_at = now() + interval '10 minutes',
    lost = referred_at < now() - interval '7 days'
where project = $1 and owner = $2 and artifact = $3 and sha256 = $4 returning lost
"""
_MEGABYTE: Final = 1024 * 1024


class ProjectLimit:
    """How much a project may have in the store, and has."""

    def __init__(self, megabytes: int) -> None:
        """0: there is no limit."""
        self._megabytes = megabytes
        self._stored: dict[str, int] = {}

    def read_again(self) -> None:
        """Contents may have been removed."""
        self._stored.clear()

    async def problem(self, connection: Connection, project: str, size: int) -> str | None:
        """Why a new content of this size is not stored; None: it may be."""
        if not self._megabytes:
            return None
        if project not in self._stored:
            self._stored[project] = await connection.fetchval(_BYTES, project)
        if self._stored[project] + size <= self._megabytes * _MEGABYTE:
            return None
        return (
            f"project {project} may have {self._megabytes} MB in the artifact store; "
            "raise SANDHERD_ARTIFACT_PROJECT_MB, or shorten the project's retention; it is tried again in ten minutes"
        )

    def add(self, project: str, stored: int) -> None:
        """A content was stored."""
        if project in self._stored:
            self._stored[project] += stored


async def wait_for_space(connection: Connection, row: Any, problem: str) -> bool:
    """Have an artifact wait; returns whether it is lost, as it has waited for too long."""
    key = row["project"], row["owner"], row["artifact"], row["sha256"]
    lost: bool = await connection.fetchval(_WAIT, *key, problem)
    return lost
