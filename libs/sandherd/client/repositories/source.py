"""The repository of a task as a user names it: a URL, or the path of a local one, and its options."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, StringConstraints, model_validator

from sandherd.client.errors import HerdError, validated
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.contracts.repositories import (
    BranchName,
    ProjectRepository,
    Repository,
    RepositoryUrl,
    Submodules,
    Ticket,
)

_COPIED_FIELDS: Final = ("base", "branch", "ticket", "join", "commit_rest", "pull_request", "submodules", "lfs")
"""The fields that are copied into the field `repository` of a task spec unchanged."""
_FILE_SCHEME: Final = "file://"
_SCP_ADDRESS: Final = re.compile(r"[^/\s]+:[^/].*", re.DOTALL)
"""An address such as `git@github.com:OWNER/NAME`, which git reads as a URL of ssh."""


class RepositorySource(Model):
    """The repository that a task works on: its `url`, or the `path` of a local repository or of a folder in it.

    Without both, it is the default repository of the project.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: RepositoryUrl | None = None
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    """A folder of this machine. The base branch of its repository is uploaded, without uncommitted changes."""
    base: BranchName | None = None
    """The branch to begin from, and to merge into. None means the default branch; of a local repository, the current
    branch."""
    branch: BranchName | None = None
    """A live branch of an earlier task to continue. None means a new branch, which is named after the task."""
    ticket: Ticket | None = None
    """The ticket that the task works on. The name of the branch contains it."""
    join: bool = False
    """Whether to continue the live branch of an earlier task with the same ticket, if there is one."""
    commit_rest: bool = True
    """Whether uncommitted changes of the agent become a commit when it ends."""
    pull_request: PullRequestOptions | None = None
    """The options of the branch's pull request. None means the options in the spawner's configuration."""
    push: bool | None = None
    """Whether the branch is pushed whenever it is saved. None means that it is pushed if the repository has a URL."""
    submodules: Submodules = False
    """Whether the checkout has the repository's submodules; with `recursive`, also the submodules of these."""
    lfs: bool = False
    """Whether the checkout has the content of files that are stored in Git LFS. Otherwise it has their pointers."""
    git_proxy: bool | None = None
    """Whether git in the sandbox may fetch from the repository and push the branch, by a proxy of the spawner. None
    means the value of the project's default repository, and False for any other repository."""

    @property
    def is_local(self) -> bool:
        """Whether it is a repository of this machine."""
        return self.path is not None

    @property
    def is_default(self) -> bool:
        """Whether it is the project's default repository."""
        return self.url is None and self.path is None

    def of_default(self, default: ProjectRepository | None, project: str) -> Repository:
        """The field `repository` of a task spec: the project's default repository, with the options of this source.

        Raises `HerdError` if the project has none.
        """
        if default is None:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"the task names no repository, and project {project} has no default one",
                field="repository",
                remedy="name it with --repo (`repository`)",
            )
        fields = self.options() | {"base": self.base or default.base}
        fields["commit_rest"] = self.commit_rest and default.commit_rest
        fields |= {"submodules": self.submodules or default.submodules, "lfs": self.lfs or default.lfs}
        fields["git_proxy"] = default.git_proxy if self.git_proxy is None else self.git_proxy
        return validated(Repository, **fields, url=default.url, push=default.push if self.push is None else self.push)

    def of_url(self) -> Repository:
        """The field `repository` of a task spec, for a source with a URL."""
        return validated(Repository, **self.options(), url=self.url, push=self.push is not False)

    def options(self) -> dict[str, Any]:
        """The fields that have the same name in a task spec."""
        return {name: getattr(self, name) for name in _COPIED_FIELDS} | {"git_proxy": bool(self.git_proxy)}

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.url is not None and self.path is not None:
            raise ValueError("name either the url of a repository, or the path of a local one")
        if self.path is not None and self.push:
            raise ValueError("a local repository is not pushed to: fetch the branch with `sandherd branches fetch`")
        if self.path is not None and self.pull_request is not None:
            raise ValueError("a local repository has no pull requests: omit pull_request")
        if self.path is not None and self.lfs:
            raise ValueError("objects of Git LFS are fetched from a forge: name the repository by its URL")
        if self.path is not None and self.git_proxy:
            raise ValueError("the git proxy is for a repository at a forge: name it by its URL")
        if self.branch is not None and self.join:
            raise ValueError("name a branch to continue, or join that of the ticket, not both")
        if self.join and self.ticket is None:
            raise ValueError("join needs a ticket")
        return self


def url_or_path(text: str) -> dict[str, str]:
    """The field `url` or `path` of a `RepositorySource` for a text. Raises `HerdError` for a URL of ssh."""
    if text.startswith(_FILE_SCHEME):
        return {"path": unquote(urlsplit(text).path)}
    if "://" in text:
        return {"url": text}
    if _SCP_ADDRESS.fullmatch(text) and not os.path.lexists(text):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "a repository is named by its URL of https, or by its path here",
            field="url",
            remedy="write it as https://HOST/OWNER/NAME, and a path that has a colon as ./a:b",
        )
    return {"path": text}


def source_of(repository: "RepositorySource | str | os.PathLike[str]") -> RepositorySource:
    """The source for a text (a URL or a path), or for a path. Raises `HerdError`."""
    if isinstance(repository, RepositorySource):
        return repository
    location = url_or_path(repository) if isinstance(repository, str) else {"path": str(Path(repository))}
    return validated(RepositorySource, **location)
