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
    """Without values of secrets: those of its variables are empty, and so are files that contain one, or that are not
    stored any more because the task is completed."""


class GetSubmittedTask(Request[SubmittedTask]):
    """Return the submitted specification of a task, while the spawner has its record."""

    Answer: ClassVar[type[BaseModel]] = SubmittedTask
    type: ClassVar[str] = "spawner.submitted_task"
    task: SafeName
