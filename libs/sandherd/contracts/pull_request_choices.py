"""The closed lists of choices for a pull request, without pydantic: the command line imports this module."""

from typing import Literal

PullRequestMode = Literal["none", "draft", "ready"]
MergePolicy = Literal["never", "when_permitted", "queue"]
MergeMethod = Literal["merge", "squash", "rebase"]
