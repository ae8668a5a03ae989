"""The limit of a project in the artifact store. Artifacts beyond the limit wait in their stream."""

from typing import Any, Final

from event_ingest.database import Connection

_PROJECT_BYTES: Final = "select coalesce(sum(bytes), 0)::bigint from artifact_contents where project = $1"
# The artifact is tried again after ten minutes, as others may be removed until then. The stream stores it for a week.
_MARK_OVER_LIMIT: Final = """
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
        self._bytes_by_project: dict[str, int] = {}
        """The bytes of the contents of each project, as far as they are known."""

    def reset(self) -> None:
        """Discard the known sizes, because contents may have been removed."""
        self._bytes_by_project.clear()

    async def problem(self, connection: Connection, project: str, size: int) -> str | None:
        """Why a new content of this size may not be stored; None if it may."""
        if not self._megabytes:
            return None
        if project not in self._bytes_by_project:
            self._bytes_by_project[project] = await connection.fetchval(_PROJECT_BYTES, project)
        if self._bytes_by_project[project] + size <= self._megabytes * _MEGABYTE_BYTES:
            return None
        return (
            f"project {project} may have {self._megabytes} MB in the artifact store; "
            "raise SANDHERD_ARTIFACT_PROJECT_MB, or shorten the project's retention; it is tried again in ten minutes"
        )

    def add(self, project: str, stored_bytes: int) -> None:
        """Add a content of `stored_bytes` bytes to the size of its project."""
        if project in self._bytes_by_project:
            self._bytes_by_project[project] += stored_bytes


async def mark_over_limit(connection: Connection, row: Any, problem: str) -> bool:
    """Store that an artifact waits for space, and why. Returns whether it is lost, because it has waited for a week."""
    key = row["project"], row["owner"], row["artifact"], row["sha256"]
    lost: bool = await connection.fetchval(_MARK_OVER_LIMIT, *key, problem)
    return lost
