"""The settings of the history's retention."""

from typing import Annotated

from pydantic import BaseModel, Field

from sandherd.contracts.names import SafeName
from sandherd.settings.fields import Env

Days = Annotated[int, Field(ge=0, le=36_500)]


class HistorySettings(BaseModel):
    """How long event-ingest stores events."""

    history_days: Annotated[Days, Env("SANDHERD_HISTORY_DAYS")] = 90
    """How many days events stay in the history; then the day that their ids are of is dropped. 0: forever.
    [docs/history.md](history.md#retention)."""
    history_project_days: Annotated[dict[SafeName, Days], Env("SANDHERD_HISTORY_PROJECT_DAYS")] = {}
    """The same for single projects, by name. Projects share the days: one is dropped when none of the projects that
    have events in it needs it."""
