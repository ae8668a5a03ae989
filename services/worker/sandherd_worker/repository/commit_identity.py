"""The author and the co-author of an agent's commits, and the settings of git that name them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.specs import TaskSpec

_REMOVED_CHARACTERS: Final = re.compile(r"[<>\x00-\x1f\x7f]")
_DEFAULT_NAME: Final = "Sandherd agent"
_DEFAULT_ADDRESS: Final = "agent@sandherd.invalid"
HOOK: Final = """#!/bin/sh
# Written by Sandherd: names the user who submitted the task. Without a message, as for an editor, nothing is added.
case "$2" in
message | commit | merge | squash) ;;
*) exit 0 ;;
esac
trailer="Co-authored-by: $(git config sandherd.coAuthor)" || exit 0
exec git interpret-trailers --in-place --if-exists addIfDifferent --trailer "$trailer" "$1"
"""
"""The hook (githooks(5)) in the sandbox that adds the co-author to the agent's own commits."""
PARTIAL: Final = (
    "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
    '[remote "origin"]\n\tpromisor = true\n\tpartialclonefilter = blob:none\n'
)
"""The settings of a partial clone, which may lack files of earlier commits (git-clone(1), `--filter`)."""


@dataclass(frozen=True)
class CommitIdentity:
    """The author, and the user who has submitted the task, if that is known."""

    name: str = _DEFAULT_NAME
    address: str = _DEFAULT_ADDRESS
    co_author: str | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """The author and committer, for git."""
        kinds = ("AUTHOR", "COMMITTER")
        names = {f"GIT_{kind}_NAME": self.name for kind in kinds}
        return names | {f"GIT_{kind}_EMAIL": self.address for kind in kinds}


def identity_of(spec: TaskSpec) -> CommitIdentity:
    """The author that a task's variables `GIT_AUTHOR_NAME` and `GIT_AUTHOR_EMAIL` state, and its co-author.

    Secret variables are ignored.
    """
    public_variables = {name: value for name, value in spec.env.items() if name not in spec.secret_env}
    return CommitIdentity(
        _without_removed_characters(public_variables.get("GIT_AUTHOR_NAME", "")) or _DEFAULT_NAME,
        _without_removed_characters(public_variables.get("GIT_AUTHOR_EMAIL", "")) or _DEFAULT_ADDRESS,
        spec.co_author.shown if spec.co_author else None,
    )


def _without_removed_characters(text: str) -> str:
    """The text without characters that git removes from a name or would misread."""
    return _REMOVED_CHARACTERS.sub("", text).strip(" .,:;\"'\\")[:200]


def settings_of(identity: CommitIdentity, url: str | None) -> str:
    """The settings of a repository, in the format of its configuration file. `url` is that of its origin."""
    user = f"[user]\n\tname = {quoted(identity.name)}\n\temail = {quoted(identity.address)}\n"
    if identity.co_author is not None:
        user += f"[sandherd]\n\tcoAuthor = {quoted(identity.co_author)}\n"
    if url is None:
        return user
    return f'{user}[remote "origin"]\n\turl = {quoted(url)}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'


def quoted(value: str) -> str:
    """A value, or the name of a subsection, quoted for a configuration file."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
