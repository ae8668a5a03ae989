"""Who the author of an agent's commits is, and who their co-author."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.specs import TaskSpec

_CRUD: Final = re.compile(r"[<>\x00-\x1f\x7f]")
_NAME: Final = "Sandherd agent"
_ADDRESS: Final = "agent@sandherd.invalid"


@dataclass(frozen=True)
class Identity:
    """The author, and the user who has submitted the task, if that is known."""

    name: str = _NAME
    address: str = _ADDRESS
    co_author: str | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """The author and committer, for git."""
        kinds = ("AUTHOR", "COMMITTER")
        names = {f"GIT_{kind}_NAME": self.name for kind in kinds}
        return names | {f"GIT_{kind}_EMAIL": self.address for kind in kinds}


def identity_of(spec: TaskSpec) -> Identity:
    """The author that a task's variables `GIT_AUTHOR_NAME` and `GIT_AUTHOR_EMAIL` state, and its co-author.

    A secret is no name.
    """
    open_ = {name: value for name, value in spec.env.items() if name not in spec.secret_env}
    return Identity(
        _clean(open_.get("GIT_AUTHOR_NAME", "")) or _NAME,
        _clean(open_.get("GIT_AUTHOR_EMAIL", "")) or _ADDRESS,
        spec.co_author.shown if spec.co_author else None,
    )


def _clean(text: str) -> str:
    """The text without what git removes from a name, or would misread."""
    return _CRUD.sub("", text).strip(" .,:;\"'\\")[:200]
