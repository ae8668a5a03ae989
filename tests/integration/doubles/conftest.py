"""The double of GitHub with one repository, and a plain client of its API."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub


@dataclass
class Answer:
    """A response of the API."""

    status: int
    headers: dict[str, str]
    json: Any
    text: str


class Api:
    """Sends requests as a client with this token."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session, self._url, self._token = session, url, token

    async def __call__(self, method: str, path: str, json: Any = None, token: str = "", **headers: str) -> Answer:
        """Send a request and read the response."""
        headers = {"Authorization": f"Bearer {token or self._token}", **headers}
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        async with self._session.request(method, self._url + path, json=json, headers=names) as response:
            text = await response.text()
            shown = await response.json() if response.content_type == "application/json" and text else None
            received = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, received, shown, text)


@pytest.fixture
def clock() -> Clock:
    """The time of the forge."""
    return Clock()


@pytest.fixture
async def github(clock: Clock) -> AsyncIterator[GitHub]:
    """GitHub."""
    async with GitHub(clock) as running:
        yield running


@pytest.fixture
def shop(github: GitHub) -> Repository:
    """A repository with a commit on `main` and another on `feature/sum`."""
    made = github.create_repository("team/shop")
    made.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")
    return made


@pytest.fixture
async def api(github: GitHub) -> AsyncIterator[Api]:
    """A client with a user's token."""
    async with aiohttp.ClientSession() as session:
        yield Api(session, github.api_url, github.person_token("ada"))


@pytest.fixture
async def opened(api: Api, shop: Repository) -> dict[str, Any]:
    """A pull request of `feature/sum`."""
    made = await api("POST", "/repos/team/shop/pulls", {"title": "Sum", "head": "feature/sum", "base": "main"})
    assert made.status == 201, made.text
    found: dict[str, Any] = made.json
    return found


def run_git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git as a client of the forge does, without this host's configuration."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com",
        "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com",
    }  # fmt: skip
    return subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


async def push_from_clone(
    folder: Path, url: str, repository: Repository, token: str, branch: str
) -> subprocess.CompletedProcess[str]:
    """Commit in a clone, and push to this branch, with a token if there is one."""
    await asyncio.to_thread(run_git, folder.parent, "clone", "-q", str(repository.git.path), str(folder))
    await asyncio.to_thread(run_git, folder, "commit", "-q", "--allow-empty", "-m", "change")
    helper = f"!f() {{ echo username=oauth2; echo password={token}; }}; f"
    with_token = ["-c", f"credential.helper={helper}"] if token else []
    return await asyncio.to_thread(run_git, folder, *with_token, "push", "-q", url, f"HEAD:{branch}")
