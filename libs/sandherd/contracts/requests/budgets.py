"""Requests about budgets: limits with their usage, and grants."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.budgets import BudgetKind, BudgetLimits, BudgetScope, BudgetWindow, WindowLimits
from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_LINES: Final = 1000
"""Maximum number of lines in a reply. If there are more, it has those that are nearest to their limits."""


class BudgetLine(Model):
    """A limit and its usage."""

    scope: BudgetScope
    project: SafeName | None = None
    """None: it is a limit of the herd."""
    task: SafeName | None = None
    window: BudgetWindow = "total"
    """`total`, for a task: all its attempts."""
    budget: BudgetKind
    limit: Count | None = None
    """The limit, including grants, in the unit of the kind: micro-dollars, tokens, turns, seconds. None: not limited.
    """
    used: Count = 0
    share: Annotated[float, Field(ge=0)] | None = None
    """The used part of the limit: 1 is all of it."""
    granted: Count = 0
    """How much of the limit was granted to the task by users."""
    metered: bool = True
    """Whether the harness of every sandbox reported its usage. If not, more was used than is known."""
    exceeded_at: Moment | None = None
    """The time since which the limit is exceeded. Agents are asked to end their work, and then stopped; no task begins.
    """
    warned_at: Moment | None = None
    """The time since which four fifths of the limit are used."""


class BudgetList(Model):
    """Limits and their usage."""

    budgets: Annotated[list[BudgetLine], Field(max_length=MAX_LINES)]


class ListBudgets(Request[BudgetList]):
    """List the budgets of a project and its tasks. If an operator names no project, also list those of the herd."""

    Answer: ClassVar[type[BaseModel]] = BudgetList
    type: ClassVar[str] = "monitor.budgets"
    task: SafeName | None = None
    """Only the budget of this task."""


class GrantBudget(Request[BudgetList]):
    """Grant a task more than its budget. Its agents continue if they have not been stopped yet."""

    Answer: ClassVar[type[BaseModel]] = BudgetList
    type: ClassVar[str] = "monitor.grant_budget"
    task: SafeName
    grant: SafeName
    """The name of this grant. If the request is repeated with the same name, it is granted once."""
    more: BudgetLimits
    granted_by: Annotated[Note, Field(max_length=200)] | None = None


class SetBudget(Request[BudgetList]):
    """Set the budget of a project, or with the project `fleet` that of the herd. Only operators may do this.

    Each kind that it sets takes precedence over the settings.
    """

    Answer: ClassVar[type[BaseModel]] = BudgetList
    type: ClassVar[str] = "monitor.set_budget"
    limits: WindowLimits
    """All limits: a kind that is left out is as in the settings."""
    updated_by: Annotated[Note, Field(max_length=200)] | None = None
