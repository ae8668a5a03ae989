"""Pull requests from the branches of tasks: their options in a task, and their state at the forge."""

from string import Template as TextTemplate
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.patterns import explained
from sandherd.contracts.pull_request_choices import MergeMethod, MergePolicy, PullRequestMode

MAX_LABELS: Final = 20
MAX_CHECKS: Final = 50
"""Maximum number of checks, and of accounts, that a view or an event names."""
PULL_REQUEST_LABEL_PATTERN: Final = explained(
    r"^[^\s,\x00-\x1f\x7f][^,\x00-\x1f\x7f]*$", "a label without a comma, which does not begin with a space"
)
REVIEWER_PATTERN: Final = explained(
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "the name of an account: letters, digits and _ . -"
)

PullRequestLabel = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=PULL_REQUEST_LABEL_PATTERN)]
Reviewer = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=REVIEWER_PATTERN)]
MAX_TEMPLATE: Final = 10_000
PLACEHOLDERS: Final = frozenset({"title", "name", "ticket", "task", "changes", "checks", "cost", "session", "closes"})


def check_template(template: str) -> str:
    """The template, if it is well-formed and has known placeholders only. Raises `ValueError`."""
    parsed = TextTemplate(template)
    unknown = sorted(set(parsed.get_identifiers()) - PLACEHOLDERS)
    if unknown:
        raise ValueError(f"unknown placeholders: {', '.join(unknown)}; known ones: {', '.join(sorted(PLACEHOLDERS))}")
    if len(template) > MAX_TEMPLATE or not parsed.is_valid():
        raise ValueError(f"a template has at most {MAX_TEMPLATE} characters, and $$ for a dollar sign")
    return template


Template = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_TEMPLATE, pattern=r"^[^\x00]*$"),
    AfterValidator(check_template),
]
Names = Annotated[list[str], Field(max_length=MAX_CHECKS)]


def _is_unset(value: object) -> bool:
    return value is None


class PullRequestOptions(Model):
    """The options of the pull request of a task's branch. Options that are not set are as the spawner is configured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    open: PullRequestMode | None = Field(default=None, exclude_if=_is_unset)
    """When and how it is opened. `none`: only at a user's request; `draft`: as a draft; `ready`: as ready for review,
    once a task has completed."""
    merge: MergePolicy | None = Field(default=None, exclude_if=_is_unset)
    """When it is merged: `never`; `when_permitted`, once checks and reviews permit it; or by the forge's merge `queue`.
    """
    method: MergeMethod | None = Field(default=None, exclude_if=_is_unset)
    """How its commits are added to the base branch."""
    labels: Annotated[tuple[PullRequestLabel, ...], Field(max_length=MAX_LABELS)] | None = Field(
        default=None, exclude_if=_is_unset
    )
    reviewers: Annotated[tuple[Reviewer, ...], Field(max_length=MAX_LABELS)] | None = Field(
        default=None, exclude_if=_is_unset
    )
    """Accounts whose reviews are requested."""
    title: Template | None = Field(default=None, exclude_if=_is_unset)
    """The template of its title."""
    body: Template | None = Field(default=None, exclude_if=_is_unset)
    """The template of its body, as Markdown."""
    follow_up: bool | None = Field(default=None, exclude_if=_is_unset)
    """Whether a task that resolves conflicts with the base branch is submitted."""


class PullRequestView(Model):
    """A pull request, as the forge described it at the last poll."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: Count
    url: str
    state: str = "open"
    """`open`, `merged` or `closed` (without a merge)."""
    base: str = ""
    """The branch that it is to be merged into; empty if it is not known yet. Users may change it at the forge."""
    draft: bool = False
    commit: str = ""
    """The last commit of the pull request at the last poll."""
    checks: str = "none"
    """The result of all checks of the commit: `none` (no check has reported yet), `pending`, `failed` or `passed`."""
    failed_checks: Names = Field(default_factory=list)
    pending_checks: Names = Field(default_factory=list)
    reviews: str = "none"
    """The result of all reviews: `none` (no review is required), `required`, `changes_requested` or `approved`."""
    approved_by: Names = Field(default_factory=list)
    """Accounts that have approved the commit."""
    mergeable: str = "unknown"
    """Whether it can be merged now: `yes`, `no`, or `unknown` while the forge has not computed it."""
    obstacle: str | None = None
    """What prevents a merge: `conflict`, `behind`, `draft`, `checks`, `reviews`, `rules`, `queue`, `method`,
    `head_moved`, `closed` or `computing`."""
    queued: bool = False
    """Whether the forge will merge it by itself, for example by its merge queue."""
    merged_commit: str | None = None
    """The commit in the base branch, once it is merged."""
    problem: str | None = None
    """What the forge refused; None if it refused nothing."""
    checked_at: Moment | None = None
    """The time of the last poll of the forge."""
