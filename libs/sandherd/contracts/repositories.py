"""The git repository that a task works on, and the branch that a sandbox checks out."""

import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import explained
from sandherd.contracts.pull_requests import PullRequestOptions

MAX_BRANCH: Final = 200
BRANCH_PATTERN: Final = explained(
    r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*$",
    "the name of a branch: letters, digits and _ . + / -, beginning with a letter, a digit or _",
)
TICKET_PATTERN: Final = explained(
    r"^#?[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", "the id of a ticket, such as #42 or PROJ-7: letters, digits and _ . -"
)
COMMIT_PATTERN: Final = explained(
    r"^([0-9a-f]{40}|[0-9a-f]{64})$", "the full id of a commit: 40 or 64 hexadecimal digits"
)
LABEL_PATTERN: Final = explained(r"^[A-Za-z0-9_.-]+$", "letters, digits and _ . -")
URL_PATTERN: Final = explained(r"^https?://[^\s\x00-\x1f\x7f]+$", "a URL of https")


_ORIGIN: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,4}|:[1-5][0-9]{4}|:6[0-4][0-9]{3})?")


def check_branch(name: str) -> str:
    """The name, if git accepts it as that of a branch (git-check-ref-format(1)). Raises `ValueError`."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or part.endswith(".lock") for part in parts)
    if ".." in name or name.endswith(".") or "" in parts or hidden or name == "HEAD":
        raise ValueError(f"{name!r} is not a valid name of a branch (git check-ref-format)")
    return name


def check_url(url: str) -> str:
    """The URL, if it has a host name and neither a credential, a query nor a fragment. Raises `ValueError`."""
    parts = urlsplit(url)
    if not _ORIGIN.fullmatch(parts.netloc) and "@" not in parts.netloc:
        raise ValueError("it has to be the URL of a repository, with a host name in ASCII and a valid port, if any")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL contains a credential; remove it: the spawner has the credentials of forges")
    if {"?", "#"} & set(url) or not parts.hostname or not parts.path.strip("/"):
        raise ValueError("it has to be the URL of a repository, such as https://github.com/OWNER/NAME")
    if {".", ".."} & set(parts.path.split("/")) or "%" in parts.path or "\\" in url:
        raise ValueError("the URL's path has to be plain: without `.`, `..` and percent signs")
    return url


BranchName = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_BRANCH, pattern=BRANCH_PATTERN), AfterValidator(check_branch)
]
Ticket = Annotated[str, StringConstraints(pattern=TICKET_PATTERN)]
"""The id of a ticket or issue that a task works on."""
Commit = Annotated[str, StringConstraints(pattern=COMMIT_PATTERN)]
"""The id of a commit."""
RepositoryUrl = Annotated[str, StringConstraints(max_length=1000, pattern=URL_PATTERN), AfterValidator(check_url)]
"""The URL of a repository, without a credential."""
RepositoryLabel = Annotated[
    str,
    StringConstraints(min_length=1, max_length=100, pattern=LABEL_PATTERN),
]


Submodules = Literal[False, True, "recursive"]
"""Whether a checkout has the repository's submodules; `recursive`: also theirs."""
MAX_SUBMODULES: Final = 64
"""Maximum submodules of a checkout, those of submodules included."""


def check_submodule_path(path: str) -> str:
    """The path, if it is below its folder, without `.git` and what a terminal does not show. Raises `ValueError`."""
    parts = path.lower().split("/")
    if {"", ".", "..", ".git"} & set(parts) or "\\" in path or path.startswith("-") or not path.isprintable():
        raise ValueError("it has to be a path below a folder, without `.git`, and printable")
    return path


SubmodulePath = Annotated[
    str,
    StringConstraints(max_length=250, pattern=r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"),
    AfterValidator(check_submodule_path),
]
"""The path or the name of a submodule."""


def _check_printable(name: str) -> str:
    """The name, if a terminal shows it as it is. Raises `ValueError`."""
    if not name.isprintable() or name != name.strip():
        raise ValueError("it has to be printable, without blanks around it")
    return name


class CoAuthor(Model):
    """A user as the co-author of an agent's commits (`Co-authored-by`): anyone who reads the repository reads it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[
        str,
        StringConstraints(max_length=100, pattern=explained(r"^[^<>\x00-\x1f\x7f]+$", "a name without < and >")),
        AfterValidator(_check_printable),
    ]
    email: Annotated[
        str,
        StringConstraints(
            max_length=200,
            pattern=explained(r"^[^<>@\s\x00-\x1f\x7f]+@[^<>@\s\x00-\x1f\x7f]+$", "an address of e-mail"),
        ),
        AfterValidator(_check_printable),
    ]

    @property
    def shown(self) -> str:
        """As git writes it."""
        return f"{self.name} <{self.email}>"


class ProjectRepository(Model):
    """The repository of a project's tasks that name none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: RepositoryUrl
    base: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The branch to begin from, and to merge into. None: the repository's default branch."""
    commit_rest: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether what the agent left uncommitted becomes a commit when it ends."""
    push: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether a branch is pushed whenever it is saved. Otherwise only at a user's request."""
    submodules: Submodules = Field(default=False, exclude_if=lambda value: value is False)
    """Whether checkouts have the repository's submodules, or these and theirs."""
    lfs: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether checkouts have the content of files that are stored in Git LFS. Otherwise they have its pointers."""
    git_proxy: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether git in sandboxes may fetch from `url` and push their branch to it, by a proxy of the spawner."""

    def of_task(self) -> "Repository":
        """The repository of a new task."""
        return Repository(**self.model_dump())


class Submodule(Model):
    """A submodule of a checkout: another repository, of which the branch names one commit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: SubmodulePath
    """Its name in `.gitmodules`."""
    path: SubmodulePath
    """Its folder in the work tree. That of a submodule's submodule begins with the path of that one."""
    url: RepositoryUrl
    commit: Commit


class Checkout(Model):
    """The branch that a sandbox checks out; only the spawner sets it, for the worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    branch: BranchName
    base: BranchName
    commit: Commit
    """The branch's commit."""
    base_commit: Commit
    """The base's commit from which the branch was created: a bundle that is saved has what comes after it."""
    bundle: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The history of the branch as a bundle (git-bundle(1)). None: the repository is mounted at `MOUNTED`."""
    owner: SafeName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The task or sandbox under whose subjects the bundle is."""
    submodules: tuple[Submodule, ...] = Field(default=(), max_length=MAX_SUBMODULES, exclude_if=lambda value: not value)
    """The submodules, each before those that are in it. Their objects are with those of the branch."""
    lfs: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The objects of Git LFS as a tar file, in which each has its SHA-256 as its name. None: the mounted repository has
    them, or none are wanted."""


SHARED_BUNDLES: Final = "repository-bundles"
"""The owner of bundles of local repositories that several tasks begin from, in place of a task's name."""
MOUNTED: Final = "/sandherd/repository"
"""Where a sandbox finds the control plane's mirror of the repository, read-only, in runtimes that mount it."""


class Repository(Model):
    """The repository of a task. Its work begins from a branch, and is saved as commits of that branch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: RepositoryUrl | None = Field(default=None, exclude_if=lambda value: value is None)
    """Its URL. None: it is a local repository of the client, in `bundle`."""
    bundle: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The base branch of a local repository as a bundle (git-bundle(1)), uploaded under the task's name before it is
    submitted (`upload_chunk` with the task as `sandbox`)."""
    label: RepositoryLabel | None = Field(default=None, exclude_if=lambda value: value is None)
    """The name of a local repository, such as that of its folder: tasks of a project with the same one share it."""
    base: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The branch to begin from, and to merge into. None: the repository's default branch."""
    branch: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """A live branch of an earlier task to continue. None: a new one, named after the task."""
    ticket: Ticket | None = Field(default=None, exclude_if=lambda value: value is None)
    """The ticket that it works on; the branch's name contains it."""
    join: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether to continue the live branch of an earlier task with the same ticket, if there is one."""
    commit_rest: bool = True
    """Whether what the agent left uncommitted becomes a commit when it ends."""
    push: bool = True
    """Whether the branch is pushed to `url` whenever it is saved. Otherwise only at a user's request."""
    submodules: Submodules = Field(default=False, exclude_if=lambda value: value is False)
    """Whether the checkout has the repository's submodules, or these and theirs."""
    lfs: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the checkout has the content of files that are stored in Git LFS. Otherwise it has its pointers."""
    git_proxy: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether git in the sandbox may fetch from `url` and push the branch to it, by a proxy of the spawner."""
    pull_request: PullRequestOptions | None = Field(default=None, exclude_if=lambda value: value is None)
    """What is wanted of the branch's pull request. None: as the spawner is configured. No sandbox gets it."""
    checkout: Checkout | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the sandbox checks out; only the spawner sets it, for the worker."""

    @property
    def shown(self) -> str:
        """The repository as it is shown to users: its URL, or the label of a local one."""
        return self.url or self.label or ""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.url is None) == (self.bundle is None):
            raise ValueError("a repository has either a url or a bundle")
        if (self.bundle is None) != (self.label is None):
            raise ValueError("a bundle needs a label, and a url has none")
        if self.lfs and self.url is None:
            raise ValueError("Git LFS needs a url: objects of a local repository are not uploaded")
        if self.git_proxy and self.url is None:
            raise ValueError("the git proxy needs a url: a local repository is at no forge")
        if self.branch is not None and self.join:
            raise ValueError("name a branch to continue, or join that of the ticket, not both")
        if self.join and self.ticket is None:
            raise ValueError("join needs a ticket")
        return self
