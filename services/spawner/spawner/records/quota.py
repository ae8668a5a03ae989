"""Limits the bytes of a bucket that one project's records use, and reserves bytes for existing records. Pure.

A full bucket refuses every write, including state changes of other projects' records. So new records are refused
earlier: those of a project that has reached its limit, and those of all projects if more than `FULL` of the bucket is
used. Records that are created at the same time may exceed a limit.
"""

from dataclasses import dataclass
from typing import Final

from sandherd.contracts.errors import Code
from sandherd.contracts.streams import BUCKETS
from spawner.spec_resolution import Refusal

FULL: Final = 0.8
"""Fraction of a bucket's bytes above which no record is created; the rest is reserved for existing records."""
_MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Quota:
    """Limits in bytes above which new records are refused: of one project's records, and of all in the bucket."""

    project: int
    bucket: int

    @classmethod
    def of(cls, bucket: str, project_mb: int) -> "Quota":
        """The limits of a bucket; `project_mb` is the setting `project_records_mb`.

        Raises `StopIteration` if there is no such bucket.
        """
        size = next(declared.max_bytes for declared in BUCKETS if declared.name == bucket)
        return cls(project_mb * _MIB, int(size * FULL))

    def refusal(self, project: str, used: int, total: int) -> Refusal | None:
        """Why a project that uses `used` of the bucket's `total` used bytes may not create a record, or None."""
        if used >= self.project:
            return Refusal(
                f"the records of project {project} use {used // _MIB} MiB, the maximum "
                "(SANDHERD_PROJECT_RECORDS_MB): ended ones are removed after SANDHERD_KEEP_ENDED",
                "project",
                Code.REFUSED,
            )
        if total >= self.bucket:
            return Refusal(
                f"the records of all projects use {total // _MIB} MiB, and the rest is reserved for existing ones: "
                "ended ones are removed after SANDHERD_KEEP_ENDED",
                "project",
                Code.REFUSED,
            )
        return None
