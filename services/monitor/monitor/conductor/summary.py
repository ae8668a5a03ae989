"""The summary of a sandbox as the Conductor reads it. Replaced by `sandherd.contracts.records` once that has it."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.model import Count, Moment
from sandherd.contracts.names import SafeName


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Edit(_Part):
    """A file that a sandbox has edited."""

    path: str
    content_sha256: str | None = None
    ranges: tuple[tuple[Count, Count], ...] = ()
    at: Moment
    count: Count = 1


class OpenFinding(_Part):
    """A pattern that the monitor sees in the behaviour of the agent at present."""

    rule: str
    count: Count = 0
    since: Moment


class SandboxSummary(_Part):
    """What the monitor knows of a sandbox, from its events."""

    bucket: ClassVar[str] = "summaries"

    project: SafeName
    sandbox: SafeName
    task: SafeName | None = None
    attempt: int = 1
    repository: str | None = None
    base: str | None = None
    branch: str | None = None
    title: Annotated[str, Field(max_length=500)] = ""
    started_at: Moment
    updated_at: Moment
    sequence: Count = 0
    state: Literal["running", "waiting", "paused", "finished", "ended"] = "running"
    edits: tuple[Edit, ...] = ()
    findings: tuple[OpenFinding, ...] = ()
    interventions: Count = 0
    spending: Any = None
