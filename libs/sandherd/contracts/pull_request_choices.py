"""What a user chooses about a pull request, as closed lists. Options of the command line have them without pydantic."""

from typing import Literal

PullRequestMode = Literal["none", "draft", "ready"]
MergePolicy = Literal["never", "when_permitted", "queue"]
MergeMethod = Literal["merge", "squash", "rebase"]
