"""The settings of the history: its database, its retention, its archive, and the store of artifacts."""

from typing import Annotated, Final

from pydantic import BaseModel, Field, field_validator

from sandherd.contracts.events.agent import AgentHeartbeat
from sandherd.contracts.names import SafeName
from sandherd.settings.daytona import ApiAddress, Secret
from sandherd.settings.fields import Env

_BUCKET: Final = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()-]+){0,10}"
Archive = Annotated[str, Field(max_length=1001, pattern=rf"^(/[^\x00-\x1f\x7f]+|{_BUCKET})$")]
ArtifactKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")]
EventType = Annotated[str, Field(pattern=r"^agent\.[a-z_]{1,60}$")]
Days = Annotated[int, Field(ge=0, le=36_500)]


class HistorySettings(BaseModel, defer_build=True):
    """Settings of how event-ingest stores events, and for how long."""

    database_pooled: Annotated[bool, Env("SANDHERD_DATABASE_POOLED")] = False
    """Whether `DATABASE_URL` is the URL of a pooler in transaction mode, such as PgBouncer.
    [docs/postgres.md](postgres.md#pgbouncer)."""
    history_days: Annotated[Days, Env("SANDHERD_HISTORY_DAYS")] = 90
    """How many days events stay in the history. Then the partition of their day is dropped; the day is the date in an
    event's id (UUIDv7). 0: forever. [docs/retention.md](retention.md)."""
    history_project_days: Annotated[dict[SafeName, Days], Env("SANDHERD_HISTORY_PROJECT_DAYS")] = {}
    """How many days events of single projects stay, by name. All projects share the partition of a day: it is dropped
    when the retention of all projects with events in it has expired. Expired events of a project are removed before."""
    history_type_days: Annotated[dict[EventType, Days], Env("SANDHERD_HISTORY_TYPE_DAYS")] = {AgentHeartbeat.type: 1}
    """How many days events of single types stay, in all projects, if they are to be removed before the other events of
    their day. Only a summary of removed events stays, such as their number. All types of agents' events (`agent.*`) are
    allowed, except `agent.shutdown`. 0: as long as the other events. A value replaces the default.
    [docs/retention.md](retention.md#types)."""
    history_task_days: Annotated[Days, Env("SANDHERD_HISTORY_TASK_DAYS")] = 0
    """How many days after its end a task or sandbox is deleted from the history, with its state, messages, approvals
    and totals, if none of its events is stored any more. 0: never. [docs/retention.md](retention.md#ended-tasks)."""
    history_archive: Annotated[Archive | None, Env("SANDHERD_HISTORY_ARCHIVE")] = None
    """An existing directory, by its absolute path, or a place in an existing bucket, `s3://BUCKET/PREFIX`. Each day is
    archived there, and verified, before it is dropped. [docs/archive.md](archive.md)."""
    artifact_store: Annotated[Archive | None, Env("SANDHERD_ARTIFACT_STORE")] = None
    """A directory or a place in a bucket, as for the archive, to which the artifacts that events refer to are copied.
    Equal artifacts of a project are stored only once. They stay as long as the events. If unset, artifacts are in their
    stream only, for at most 7 days. [docs/artifacts.md](artifacts.md)."""
    artifact_project_mb: Annotated[int, Env("SANDHERD_ARTIFACT_PROJECT_MB"), Field(ge=0)] = 0
    """How many megabytes a project may have in the artifact store. Further artifacts are not copied, and stay in their
    stream only. 0: no limit."""
    artifact_key: Annotated[ArtifactKey | None, Env("SANDHERD_ARTIFACT_KEY", secret=True)] = Field(None, repr=False)
    """32 random bytes in base64. The key that encrypts a project's artifacts is derived from it. If unset, artifacts
    are not encrypted."""
    s3_endpoint: Annotated[ApiAddress | None, Env("SANDHERD_S3_ENDPOINT")] = None
    """The URL of the object store for `s3://` places; if unset, the URL of AWS."""
    s3_region: Annotated[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")], Env("SANDHERD_S3_REGION")] = "us-east-1"
    """The region of the bucket."""
    s3_access_key_id: Annotated[Secret | None, Env("SANDHERD_S3_ACCESS_KEY_ID", secret=True)] = Field(None, repr=False)
    """The id of the access key for the bucket. If unset, AWS's own variables are used, or else the identity of the pod
    or of the instance."""
    s3_secret_access_key: Annotated[Secret | None, Env("SANDHERD_S3_SECRET_ACCESS_KEY", secret=True)] = Field(
        None, repr=False
    )
    """The secret of the access key."""

    @field_validator("history_type_days", mode="after")
    @classmethod
    def _types_may_be_removed(cls, days: dict[str, int]) -> dict[str, int]:
        from sandherd.contracts.events import EVENTS

        for name in days:
            model = EVENTS.get(name)
            if model is None:
                raise ValueError(f"{name} is not a type of event")
            if model.sets_state is not None or model.closes_source or model.closes_source_alone:
                raise ValueError(f"{name} can't be removed before its day: it sets a state, or ends its source")
        return days
