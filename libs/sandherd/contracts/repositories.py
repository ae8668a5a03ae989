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
    """The name, if git accepts it as the name of a branch (git-check-ref-format(1)). Raises `ValueError`."""
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
        raise ValueError("the URL must have no backslash, and its path no percent sign and no segment `.` or `..`")
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
"""Whether a checkout has the repository's submodules; `recursive`: also the submodules of submodules."""
MAX_SUBMODULES: Final = 64
"""Maximum number of submodules of a checkout, including the submodules of submodules."""


def check_submodule_path(path: str) -> str:
    """The path, if it is printable, leads to a place below its folder, and contains no `.git`. Raises `ValueError`."""
    parts = path.lower().split("/")
    if {"", ".", "..", ".git"} & set(parts) or "\\" in path or path.startswith("-") or not path.isprintable():
        raise ValueError("it has to be a printable path below a folder, without `.git`")
    return path


SubmodulePath = Annotated[
    str,
    StringConstraints(max_length=250, pattern=r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"),
    AfterValidator(check_submodule_path),
]
"""The path or the name of a submodule."""


def _check_printable(text: str) -> str:
    """The text, if it is printable and has no blanks around it. Raises `ValueError`."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("it has to be printable, without blanks around it")
    return text


class CoAuthor(Model):
    """The user who is named as the co-author of an agent's commits (`Co-authored-by`).

    Everyone who can read the repository can read the name and the address.
    """

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
            pattern=explained(r"^[^<>@\s\x00-\x1f\x7f]+@[^<>@\s\x00-\x1f\x7f]+$", "an e-mail address"),
        ),
        AfterValidator(_check_printable),
    ]

    @property
    def shown(self) -> str:
        """The co-author as git writes it: `NAME <EMAIL>`."""
        return f"{self.name} <{self.email}>"


class ProjectRepository(Model):
    """The default repository of a project: that of its tasks that name none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: RepositoryUrl
    base: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The branch to begin from, and to merge into. None: the repository's default branch."""
    commit_rest: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether the uncommitted changes of the agent are committed when it ends."""
    push: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether a branch is pushed whenever it is saved. Otherwise it is pushed only at a user's request."""
    submodules: Submodules = Field(default=False, exclude_if=lambda value: value is False)
    """Whether checkouts have the repository's submodules; `recursive`: also the submodules of submodules."""
    lfs: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether checkouts have the content of files that are stored in Git LFS. Otherwise they have pointers instead."""
    git_proxy: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether git in sandboxes may fetch from `url` and push their branch to it, by a proxy of the spawner."""

    def of_task(self) -> "Repository":
        """The repository of a new task."""
        return Repository(**self.model_dump())


class Submodule(Model):
    """A submodule of a checkout: another repository, at the commit that the branch names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: SubmodulePath
    """Its name in `.gitmodules`."""
    path: SubmodulePath
    """Its folder in the work tree. If it is inside another submodule, its path begins with the path of that submodule.
    """
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
    """The commit of the base from which the branch was created. A saved bundle has the commits after it."""
    bundle: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The history of the branch as a bundle (git-bundle(1)). None: the repository is mounted at `/sandherd/repository`.
    """
    owner: SafeName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The task or sandbox under whose subjects the bundle is stored."""
    submodules: tuple[Submodule, ...] = Field(default=(), max_length=MAX_SUBMODULES, exclude_if=lambda value: not value)
    """The submodules; each one precedes the submodules inside it. Their objects are stored with those of the branch."""
    lfs: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The objects of Git LFS as a tar file, in which the SHA-256 of each object is its name. None: the mounted
    repository has the objects, or the checkout needs none."""


SHARED_BUNDLES: Final = "repository-bundles"
"""The owner, in place of a task, of bundles of local repositories from which several tasks begin."""
MOUNTED: Final = "/sandherd/repository"
"""Where the control plane's mirror of the repository is mounted read-only in a sandbox, by runtimes that can do so."""


class Repository(Model):
    """The repository of a task. The work begins from a branch, and is saved as commits of that branch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: RepositoryUrl | None = Field(default=None, exclude_if=lambda value: value is None)
    """Its URL. None: it is a local repository of the client, in `bundle`."""
    bundle: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The base branch of a local repository as a bundle (git-bundle(1)), uploaded under the task's name before it is
    submitted (`upload_chunk` with the task as `sandbox`)."""
    label: RepositoryLabel | None = Field(default=None, exclude_if=lambda value: value is None)
    """The name of a local repository, such as the name of its folder. Tasks of a project with the same label share the
    repository."""
    base: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The branch to begin from, and to merge into. None: the repository's default branch."""
    branch: BranchName | None = Field(default=None, exclude_if=lambda value: value is None)
    """A live branch of an earlier task to continue. None: a new one, named after the task."""
    ticket: Ticket | None = Field(default=None, exclude_if=lambda value: value is None)
    """The ticket that the task works on; the branch's name contains it."""
    join: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether to continue the live branch of an earlier task with the same ticket, if there is one."""
    commit_rest: bool = True
    """Whether the uncommitted changes of the agent are committed when it ends."""
    push: bool = True
    """Whether the branch is pushed to `url` whenever it is saved. Otherwise it is pushed only at a user's request."""
    submodules: Submodules = Field(default=False, exclude_if=lambda value: value is False)
    """Whether the checkout has the repository's submodules; `recursive`: also the submodules of submodules."""
    lfs: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the checkout has the content of files that are stored in Git LFS. Otherwise it has pointers instead."""
    git_proxy: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether git in the sandbox may fetch from `url` and push the branch to it, by a proxy of the spawner."""
    pull_request: PullRequestOptions | None = Field(default=None, exclude_if=lambda value: value is None)
    """The options of the branch's pull request. None: as the spawner is configured. Sandboxes do not get them."""
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
            raise ValueError("the git proxy needs a url: a local repository has no forge")
        if self.branch is not None and self.join:
            raise ValueError("set either branch, or join to continue the branch of the ticket, but not both")
        if self.join and self.ticket is None:
            raise ValueError("join needs a ticket")
        return self
