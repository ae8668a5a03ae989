"""The settings of the history's retention."""

from typing import Annotated

from pydantic import BaseModel, Field

from sandherd.contracts.names import SafeName
from sandherd.settings.fields import Env

Directory = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]{1,1000}$")]
Days = Annotated[int, Field(ge=0, le=36_500)]


class HistorySettings(BaseModel):
    """How event-ingest stores events, and for how long."""

    database_pooled: Annotated[bool, Env("SANDHERD_DATABASE_POOLED")] = False
    """Whether `DATABASE_URL` is that of a pooler in transaction mode, such as PgBouncer.
    [docs/postgres.md](postgres.md#pgbouncer)."""
    history_days: Annotated[Days, Env("SANDHERD_HISTORY_DAYS")] = 90
    """How many days events stay in the history; then the day that their ids are of is dropped. 0: forever.
    [docs/history.md](history.md#retention)."""
    history_project_days: Annotated[dict[SafeName, Days], Env("SANDHERD_HISTORY_PROJECT_DAYS")] = {}
    """The same for single projects, by name. Projects share the days: one is dropped when none of the projects that
    have events in it needs it."""
    history_archive: Annotated[
        Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]{1,1000}$")] | None, Env("SANDHERD_HISTORY_ARCHIVE")
    ] = None
    """An existing directory, by its absolute path. Each day is archived there, and verified, before it is dropped.
    [docs/history.md](history.md#archive)."""
