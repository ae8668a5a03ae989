"""The settings of forges: their hosts, and the files with credentials for their APIs and repositories."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.patterns import explained
from sandherd.settings.fields import NONE, Env, Names

_URL: Final = r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_.~-]+)*/?"
ForgeUrl = Annotated[
    str, StringConstraints(pattern=explained(f"^{_URL}$", "the URL of a forge, such as https://git.example.com"))
]
ForgeAddress = Annotated[
    str,
    StringConstraints(
        pattern=explained(
            f"^(github|gitlab|gitea|forgejo)={_URL}$",
            "github, gitlab, gitea or forgejo, and the URL, as gitlab=https://git.example.com",
        )
    ),
]
"""The kind of a forge and its URL."""
AppId = Annotated[
    str, StringConstraints(pattern=explained(r"^[A-Za-z0-9.]{1,64}$", "the id or the client id of a GitHub App"))
]


class ForgeSettings(BaseModel, defer_build=True):
    """Forges besides github.com, gitlab.com and codeberg.org, and the credentials of forges.

    No sandbox gets a credential. Files are read for each use.
    """

    forges: Annotated[list[ForgeAddress], Names, NONE, Env("SANDHERD_FORGES")] = []
    """Further forges by kind and URL, such as `gitlab=https://git.example.com,gitea=https://example.com/git`; the kinds
    are github, gitlab, gitea and forgejo."""
    forge_tokens: Annotated[Path | None, Env("SANDHERD_FORGE_TOKENS")] = None
    """A folder with a file for each forge, whose content is a token: named by the host, such as `git.example.com`, or
    `git.example.com_8443` with a port."""
    github_app_id: Annotated[AppId | None, Env("SANDHERD_GITHUB_APP_ID")] = None
    """The id or client id of a GitHub App. Its tokens are limited to one repository and one hour."""
    github_app_key: Annotated[Path | None, Env("SANDHERD_GITHUB_APP_KEY")] = None
    """The PEM file with the App's private key."""
    github_app_installation: Annotated[int | None, Env("SANDHERD_GITHUB_APP_INSTALLATION"), Field(ge=1)] = None
    """The only installation of the App that is used, because anyone can install a public App; if unset, all are."""
    github_app_host: Annotated[ForgeUrl, Env("SANDHERD_GITHUB_APP_HOST")] = "https://github.com"
    """The URL of the GitHub server that has the App."""
    github_app_workflows: Annotated[bool, Env("SANDHERD_GITHUB_APP_WORKFLOWS")] = False
    """Whether tokens of the App may change workflows; otherwise GitHub refuses that. The App itself needs this
    permission, too."""
