"""The limit of a project in the artifact store. Artifacts beyond the limit wait in their stream."""

from typing import Any, Final

from event_ingest.database import Connection

_BYTES: Final = "select coalesce(sum(bytes), 0)::bigint from artifact_contents where project = $1"
# It is tried again after ten minutes, as other artifacts may be removed until then. The stream has it for a week.
_WAIT: Final = """
update artifacts set problem = $5, over_limit = true, next_try_at = now() + interval '10 minutes',
    lost = referred_at < now() - interval '7 days'
where project = $1 and owner = $2 and artifact = $3 and sha256 = $4 returning lost
"""
_MEGABYTE_BYTES: Final = 1024 * 1024


class ProjectLimit:
    """The size that the contents of a project may have in the store, and their present size."""

    def __init__(self, megabytes: int) -> None:
        """`megabytes` is the limit of each project; 0 means no limit."""
        self._megabytes = megabytes
        self._stored: dict[str, int] = {}
        """By project: the bytes that its contents have."""

    def reset(self) -> None:
        """Discard the known sizes, because contents may have been removed."""
        self._stored.clear()

    async def problem(self, connection: Connection, project: str, size: int) -> str | None:
        """Why a new content of this size may not be stored; None if it may."""
        if not self._megabytes:
            return None
        if project not in self._stored:
            self._stored[project] = await connection.fetchval(_BYTES, project)
        if self._stored[project] + size <= self._megabytes * _MEGABYTE_BYTES:
            return None
        return (
            f"project {project} may have {self._megabytes} MB in the artifact store; "
            "raise SANDHERD_ARTIFACT_PROJECT_MB, or shorten the project's retention; it is tried again in ten minutes"
        )

    def add(self, project: str, stored: int) -> None:
        """Add a content of `stored` bytes to the size of its project."""
        if project in self._stored:
            self._stored[project] += stored


async def mark_over_limit(connection: Connection, row: Any, problem: str) -> bool:
    """Store that an artifact waits for space, and why. Returns whether it is lost, because it has waited for a week."""
    key = row["project"], row["owner"], row["artifact"], row["sha256"]
    lost: bool = await connection.fetchval(_WAIT, *key, problem)
    return lost
