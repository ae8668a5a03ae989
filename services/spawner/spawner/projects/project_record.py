"""A project as it is stored in the bucket `projects`."""

from pydantic import AwareDatetime

from sandherd.contracts.requests import ProjectDefaults, ProjectLimits
from spawner.records.base_record import Record


class ProjectRecord(Record):
    """A project with limits or defaults of its own."""

    limits: ProjectLimits = ProjectLimits()
    defaults: ProjectDefaults = ProjectDefaults()
    created_at: AwareDatetime
    updated_at: AwareDatetime
    updated_by: str | None = None

    @property
    def name(self) -> str:
        """The project's name."""
        return self.project

    @property
    def key(self) -> str:
        """The record's key in the bucket: the project's name."""
        return self.project

    @property
    def source(self) -> str:
        """Unused, because this kind of record publishes no events."""
        return f"/sandherd/spawner/{self.project}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty, because this kind of record publishes no events."""
        return {}
