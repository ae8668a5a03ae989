"""The request for the submitted specification of a task, so that it can be submitted again."""

from typing import ClassVar

from pydantic import BaseModel

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import TaskSpec


class SubmittedTask(Model):
    """The submitted specification of a task."""

    task: SafeName
    spec: TaskSpec
    """The spec without values of secrets. Variables with secret values are empty. Files are empty if they contain such
    a value, or if they are no longer stored because the task is completed."""


class GetSubmittedTask(Request[SubmittedTask]):
    """Return the submitted specification of a task, while the spawner has its record."""

    Answer: ClassVar[type[BaseModel]] = SubmittedTask
    type: ClassVar[str] = "spawner.submitted_task"
    task: SafeName
