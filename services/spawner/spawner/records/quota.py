"""How much of a bucket the records of one project may take, and what is reserved for records that exist. Pure.

A bucket that is full refuses every write, also the changes of state of other projects' records. So new records are
refused before: those of a project that uses its share, and all of them above `FULL` of the bucket. Records that are
created at the same time do not count for each other.
"""

from dataclasses import dataclass
from typing import Final

from sandherd.contracts.streams import BUCKETS
from spawner.resolving import Refusal

FULL: Final = 0.8
"""The part of a bucket's bytes above which no new record is made; the rest is for changes of those that exist."""
_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Quota:
    """Limits in bytes: for the records of one project, and for all of the bucket until new ones are refused."""

    project: int
    bucket: int

    @classmethod
    def of(cls, bucket: str, project_mb: int) -> "Quota":
        """The limits of a bucket, at this setting of `project_records_mb`. Raises `StopIteration` without such."""
        size = next(declared.max_bytes for declared in BUCKETS if declared.name == bucket)
        return cls(project_mb * _MIB, int(size * FULL))

    def refusal(self, project: str, used: int, total: int) -> Refusal | None:
        """Why a project that uses `used` bytes of a bucket in which `total` are used gets no new record, or None."""
        if used >= self.project:
            return Refusal(
                f"the records of project {project} take {used // _MIB} MiB, all that they may "
                "(SANDHERD_PROJECT_RECORDS_MB): those that have ended are removed after SANDHERD_KEEP_ENDED",
                "project",
            )
        if total >= self.bucket:
            return Refusal(
                f"the records of all projects take {total // _MIB} MiB, and the rest is reserved for those that exist: "
                "those that have ended are removed after SANDHERD_KEEP_ENDED",
                "project",
            )
        return None
