"""The settings of repositories that tasks work on: permitted hosts, credentials, and what a user has to approve."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, StringConstraints, field_validator

from sandherd.contracts.patterns import explained
from sandherd.settings.fields import NONE, Env, Names, Positive

_HOST: Final = explained(
    r"^(http://)?[A-Za-z0-9.-]+(:[0-9]{1,5})?$", "a host, with a port if that is not 443, such as git.example.com:8443"
)
RepositoryHost = Annotated[str, StringConstraints(pattern=_HOST)]
"""A host name, with a port if that is not 443. `http://` before it permits http in place of https."""
Token = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$")]
_DEFAULT_HOSTS: Final = ("github.com", "gitlab.com", "codeberg.org", "bitbucket.org")
_DEFAULT_LFS_HOSTS: Final = ("github-cloud.githubusercontent.com", "github-cloud.s3.amazonaws.com")
_DEFAULT_APPROVAL_PATHS: Final = (
    ".github/workflows/**",
    ".github/actions/**",
    ".gitlab-ci.yml",
    ".gitea/workflows/**",
    ".forgejo/workflows/**",
    ".github/dependabot.yml",
    ".gitlab/**",
    ".circleci/**",
    ".woodpecker.yml",
    ".woodpecker/**",
    ".travis.yml",
    ".drone.yml",
    ".cirrus.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "Jenkinsfile",
    "**/CODEOWNERS",
)


_PREFIX: Final = r"[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*"
BranchPrefix = Annotated[
    str,
    StringConstraints(
        max_length=2000,
        pattern=explained(
            rf"^{_PREFIX}(=[a-z0-9]+(\|[a-z0-9]+)*)?$",
            "a prefix and its words, as bugfix=fix|bug, in lower case; a prefix may have folders, as agents/bugfix",
        ),
    ),
]
"""A prefix of branch names, and words. A branch gets the prefix if the title of its task has one of the words, or if
there are no words."""
BRANCH_PREFIXES: Final = (
    "hotfix=hotfix|urgent|outage|emergency|incident",
    "bugfix=bugfix|bug|fix|fixes|repair|crash|broken|regression|failing|fails",
    "release=release|changelog",
    "chore=chore|bump|upgrade|dependencies|rename|reformat|lint|cleanup|typo|docs",
    "feature",
)
MAX_PREFIX_LENGTH: Final = 30
"""Maximum characters of a prefix: half of those of a branch's name."""


Committer = Annotated[
    str,
    StringConstraints(
        max_length=200,
        pattern=explained(
            r"^[^<>\s][^<>\x00-\x1f\x7f]* <[^<>@\s\x00-\x1f\x7f]+@[^<>@\s\x00-\x1f\x7f]+>$",
            "a name and an address, as Sandherd <sandherd@example.com>",
        ),
    ),
]


ProxyUrl = Annotated[
    str,
    StringConstraints(
        max_length=300,
        pattern=explained(
            r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?/?$",
            "a URL without a path, such as http://127.0.0.1:9402",
        ),
    ),
]
ListenAddress = Annotated[
    str,
    StringConstraints(
        pattern=explained(
            r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$",
            "an address and a port, such as 127.0.0.1:9402 or [::1]:9402",
        )
    ),
]


class RepositorySettings(BaseModel, defer_build=True):
    """Which repositories tasks may name, and how the spawner fetches and pushes them."""

    repository_hosts: Annotated[list[RepositoryHost], Names, NONE, Env("SANDHERD_REPOSITORY_HOSTS")] = list(
        _DEFAULT_HOSTS
    )
    """The hosts of repositories that tasks may name, because the spawner connects to them; `none`: only local
    repositories, which clients upload."""
    github_token: Annotated[Token | None, Env("GITHUB_TOKEN", secret=True)] = Field(None, repr=False)
    """A token for repositories on github.com. No sandbox gets it."""
    git_credentials: Annotated[Path | None, Env("SANDHERD_GIT_CREDENTIALS")] = None
    """A file with credentials of other hosts, one `https://USER:TOKEN@HOST` in each line (git-credential-store(1)). It
    is read for each use. No sandbox gets them."""
    repository_approval: Annotated[list[str], Names, NONE, Env("SANDHERD_REPOSITORY_APPROVAL")] = list(
        _DEFAULT_APPROVAL_PATHS
    )
    """Paths, as in .gitignore, whose changes a user has to approve before a branch is pushed."""
    branch_prefixes: Annotated[list[BranchPrefix], Names, Env("SANDHERD_BRANCH_PREFIXES")] = list(BRANCH_PREFIXES)
    """The prefixes of branch names with their words, such as `bugfix=fix|bug,feature`: a branch gets the first prefix
    with a word that occurs in the task's title. The last prefix may have no words: branches of all other tasks get it.
    If it has words, they get `feature`."""
    max_repository_mb: Annotated[int, Env("SANDHERD_MAX_REPOSITORY_MB"), Field(ge=1, le=1_048_576)] = 4096
    """Maximum size of the spawner's mirror of a repository."""
    max_mirrors: Annotated[int, Env("SANDHERD_MAX_MIRRORS"), Field(ge=1, le=100_000)] = 100
    """Maximum number of the spawner's mirrors of one project's repositories."""
    max_mirrors_mb: Annotated[int, Env("SANDHERD_MAX_MIRRORS_MB"), Field(ge=1, le=104_857_600)] = 20_480
    """Maximum size of all mirrors of one project. Above it, mirrors that no live branch needs are removed."""
    mirror_filter: Annotated[Literal["none", "blob:none"], Env("SANDHERD_MIRROR_FILTER")] = "none"
    """The filter of mirrors, as in git: with `blob:none` they contain no files. These are fetched when they are needed,
    so the forge always has to be reachable."""
    share_mirrors: Annotated[bool, Env("SANDHERD_SHARE_MIRRORS")] = False
    """Whether a new mirror begins with a copy of another project's mirror of the same repository. Only branches that
    the forge shows to the new project's own credential are copied."""
    max_lfs_mb: Annotated[int, Env("SANDHERD_MAX_LFS_MB"), Field(ge=1, le=1_048_576)] = 1024
    """Maximum size of the Git LFS files in one checkout, for tasks that request them (`lfs`)."""
    lfs_hosts: Annotated[list[RepositoryHost], Names, NONE, Env("SANDHERD_LFS_HOSTS")] = list(_DEFAULT_LFS_HOSTS)
    """The hosts from which objects of Git LFS are fetched, and to which they are uploaded, if the repository's own host
    names them. The hosts in `SANDHERD_REPOSITORY_HOSTS` are permitted, too."""
    keep_mirrors: Annotated[Positive, Env("SANDHERD_KEEP_MIRRORS")] = 2_592_000
    """How long a mirror that no live branch needs stays after its last use."""

    git_proxy_url: Annotated[ProxyUrl | None, Env("SANDHERD_GIT_PROXY_URL")] = None
    """The URL at which sandboxes reach the git proxy, such as `http://127.0.0.1:9402`. Tasks with `git_proxy` fetch and
    push through it. If unset, there is no git proxy."""
    git_proxy_listen: Annotated[ListenAddress, Env("SANDHERD_GIT_PROXY_LISTEN")] = "127.0.0.1:9402"
    """The address on which the spawner serves the git proxy, if `git_proxy_url` is set. It is HTTP without TLS."""

    signing_key: Annotated[Path | None, Env("SANDHERD_SIGNING_KEY")] = None
    """The file with the SSH private key (Ed25519 or RSA, without a passphrase) that signs the commits of sandboxes, if
    `signing_committer` is set. It is read for each use. No sandbox gets it."""
    signing_committer: Annotated[Committer | None, Env("SANDHERD_SIGNING_COMMITTER")] = None
    """The committer of signed commits, as `NAME <ADDRESS>`. Their author is the agent. A forge shows them as verified
    if the account with the public key also has the address. If unset, commits are not signed."""

    @field_validator("branch_prefixes", mode="after")
    @classmethod
    def _each_prefix_has_an_effect(cls, entries: list[str]) -> list[str]:
        prefixes = [entry.partition("=")[0] for entry in entries]
        if any("=" not in entry for entry in entries[:-1]):
            raise ValueError("only the last prefix may have no words: prefixes after it would have no effect")
        if len(set(prefixes)) < len(prefixes):
            raise ValueError("a prefix is listed twice; list its words together")
        if any(len(prefix) > MAX_PREFIX_LENGTH for prefix in prefixes):
            raise ValueError(f"a prefix may have at most {MAX_PREFIX_LENGTH} characters")
        return entries
