"""Requests about projects: their limits, the defaults of their tasks, and their current usage."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.harnesses import ModelName
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.repositories import ProjectRepository
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import Image
from sandherd.contracts.states import SteeringStep

MAX_USERS: Final = 100
"""Maximum number of users in the view of a project."""
ProjectLimit = Annotated[int, Field(ge=0, le=1_000_000)]


class ProjectLimits(Model):
    """The limits of one project. Limits that are not set are taken from the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: ProjectLimit | None = Field(default=None, exclude_if=lambda value: value is None)
    """Maximum number of tasks at work: those with a sandbox that has not ended."""
    sandboxes: ProjectLimit | None = Field(default=None, exclude_if=lambda value: value is None)
    """Maximum number of live sandboxes, with or without a task."""


class ProjectDefaults(Model):
    """The defaults for fields that the spec of a new task of the project leaves out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness: SafeName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The kind of agent of tasks whose harness is of the kind `default`."""
    model: ModelName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The model, for kinds of agent that have one."""
    memory_mb: Annotated[int, Field(ge=64, le=65_536)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """The memory of a sandbox, in MiB."""
    cores: Annotated[float, Field(ge=0.05, le=256)] | None = Field(default=None, exclude_if=lambda value: value is None)
    """The cores of a sandbox."""
    attempt_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """How long an attempt may take."""
    image: Image | None = Field(default=None, exclude_if=lambda value: value is None)
    """The image or snapshot of a sandbox, in runtimes that have them."""
    repository: ProjectRepository | None = Field(default=None, exclude_if=lambda value: value is None)
    """The repository of tasks that have no repository, work tree or session of their own."""
    max_intervention: SteeringStep | None = Field(default=None, exclude_if=lambda value: value is None)
    """The strongest step of the monitor's guardian rules."""
    constraints: Constraints | None = Field(default=None, exclude_if=lambda value: value is None)
    """What agents of the project must not do, in addition to the constraints of the herd."""


ProjectField = Literal[
    "tasks", "sandboxes", "harness", "model", "memory_mb", "cores", "attempt_seconds", "image", "repository",
    "constraints", "max_intervention",
]  # fmt: skip
"""A limit or a default of a project."""


class LimitView(Model):
    """A limit in effect."""

    maximum: Count
    source: str
    """`project`, or the name of the setting that it comes from."""
    used: Count = 0
    """Number of tasks or sandboxes that count against the limit now."""


class ProjectView(Model):
    """A project: its limits in effect, its defaults, and its current usage."""

    project: SafeName
    created_at: Moment | None = None
    """When the record of the project was created; None: it has no record, and all values come from the settings."""
    updated_at: Moment | None = None
    updated_by: Note | None = None
    """Who created or changed it last, according to the client."""
    tasks: LimitView
    """The limit of tasks at work, and their number."""
    sandboxes: LimitView
    """The limit of live sandboxes, and their number."""
    pending: Count = 0
    """Number of tasks that wait for their next attempt."""
    defaults: ProjectDefaults = ProjectDefaults()
    users: Annotated[list[Note], Field(max_length=MAX_USERS)] = Field(default_factory=list)
    """The users who submitted its current tasks or set its secrets, according to their clients."""


class ProjectList(Model):
    """Projects, by name."""

    projects: list[ProjectView]

    @property
    def recorded(self) -> list[ProjectView]:
        """The projects that have a record."""
        return [project for project in self.projects if project.created_at is not None]


class ListProjects(Request[ProjectList]):
    """List one project, or all that have a record, a limit in the settings, a task or a sandbox."""

    Answer: ClassVar[type[BaseModel]] = ProjectList
    type: ClassVar[str] = "spawner.projects"


class SetProject(Request[ProjectView]):
    """Create a project, or change one. Only operators may do this."""

    Answer: ClassVar[type[BaseModel]] = ProjectView
    type: ClassVar[str] = "spawner.set_project"
    new: bool = False
    """Whether to create the project; if it exists with other values, the reply is a `conflict`. Otherwise it has to
    exist."""
    limits: ProjectLimits = ProjectLimits()
    """The limits to set; the others are not changed."""
    defaults: ProjectDefaults = ProjectDefaults()
    """The defaults to set; the others are not changed. Tasks that were submitted before are not affected."""
    unset: list[ProjectField] = Field(default_factory=list, max_length=10)
    """Limits and defaults to remove; the values of the settings apply again."""
    updated_by: Annotated[Note, Field(max_length=200)] | None = None
