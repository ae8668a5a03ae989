"""The settings of pull requests: whether they are opened and merged, and how. A task may override some of them."""

from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints, ValidationInfo, field_validator

from sandherd.contracts.patterns import explained
from sandherd.contracts.pull_request_choices import MergeMethod, MergePolicy, PullRequestMode
from sandherd.contracts.pull_requests import (
    MAX_LABELS,
    PullRequestLabel,
    Reviewer,
    Template,
)
from sandherd.settings.fields import NONE, Env, Names

_SESSION_URL: Final = explained(
    r"^https?://[^\s\x00-\x1f\x7f]+$", "a URL of http or https, with {project} and {task} where their names belong"
)


class PullRequestSettings(BaseModel, defer_build=True):
    """Whether and how the spawner opens and merges pull requests, unless a task overrides it."""

    pull_requests: Annotated[PullRequestMode | None, Env("SANDHERD_PULL_REQUESTS")] = None
    """Whether a pull request is opened for a pushed branch when its last attempt has ended: `none` (only at a user's
    request), `draft`, or `ready` (for review, if the task has completed). If unset, it is `none`."""
    merge_policy: Annotated[MergePolicy, Env("SANDHERD_MERGE_POLICY")] = "never"
    """Whether pull requests are merged: `never`, `when_permitted` by checks and reviews, or by the forge's `queue`.
    With another value than `never`, `pull_requests` has to be set, too."""
    merge_method: Annotated[MergeMethod, Env("SANDHERD_MERGE_METHOD")] = "merge"
    """How a pull request is merged into its base branch."""
    pull_request_labels: Annotated[
        list[PullRequestLabel], Names, NONE, Env("SANDHERD_PULL_REQUEST_LABELS"), Field(max_length=MAX_LABELS)
    ] = []
    """Labels of pull requests."""
    pull_request_reviewers: Annotated[
        list[Reviewer], Names, NONE, Env("SANDHERD_PULL_REQUEST_REVIEWERS"), Field(max_length=MAX_LABELS)
    ] = []
    """Accounts whose reviews are requested."""
    pull_request_title: Annotated[Template | None, Env("SANDHERD_PULL_REQUEST_TITLE")] = None
    """The template of titles. docs/repositories.md lists the placeholders."""
    pull_request_body: Annotated[Template | None, Env("SANDHERD_PULL_REQUEST_BODY")] = None
    """The template of bodies, as Markdown."""
    conflict_follow_up: Annotated[bool, Env("SANDHERD_CONFLICT_FOLLOW_UP")] = False
    """Whether a task is submitted that resolves the conflicts of a pull request."""
    session_url: Annotated[
        Annotated[str, StringConstraints(max_length=1000, pattern=_SESSION_URL)] | None, Env("SANDHERD_SESSION_URL")
    ] = None
    """The URL of a task's page, with `{project}` and `{task}`. Pull requests link to it; if unset, they have the
    command that shows the task."""
    pull_request_days: Annotated[int, Env("SANDHERD_PULL_REQUEST_DAYS"), Field(ge=1, le=365)] = 30
    """The number of days after its last change for which a pull request is polled at its forge."""

    @field_validator("merge_policy", mode="after")
    @classmethod
    def _merges_what_is_opened(cls, policy: MergePolicy, info: ValidationInfo) -> MergePolicy:
        if policy != "never" and info.data.get("pull_requests", "invalid") is None:
            choices = "ready or draft, or none if only those that users open are to be merged"
            raise ValueError(f"no pull request would be opened: set SANDHERD_PULL_REQUESTS, too: {choices}")
        return policy
