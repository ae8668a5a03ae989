"""A task's way from submission to a merged pull request: a real spawner, worker and agent, and the forge's double."""

from pathlib import Path

import pytest

from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import BranchView, ListBranches, ListLiveTasks, MergeBranch, OpenPullRequest
from sandherd.contracts.states import BranchState
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner import main
from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.locations import ForgeKind
from spawner.main import compose
from tests.integration.forges.sites import Site, opened_site
from tests.integration.spawner.conftest import ProjectUser, home
from tests.patience import PATIENCE
from tests.polling import eventually

__all__ = ["home"]
COMMITS = ["/bin/sh", "-c", "echo more > more.txt; git add .; git commit -qm more"]


async def test_task_becomes_a_pull_request_that_a_user_merges(
    herd: Broker, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's options and requests lead to the merge; the sandbox sees neither options nor token."""
    async with opened_site(ForgeKind.GITHUB) as site, herd.bus(Principal.CLIENT, project="p1") as bus:
        token = site.token()
        monkeypatch.setattr(main, "forges_of", lambda _: forges_at(site, token))
        person = ProjectUser(bus, eventually, home)
        await person.listen()
        async with compose(settings_of(herd, home, tmp_path, site, token)).running():
            options = PullRequestOptions(open="ready", labels=("agent",))
            repository = Repository(url=f"{site.repository.url}.git", pull_request=options)
            task = await person.submit(COMMITS, repository=repository)

            async def opened() -> BranchView | None:
                found = (await bus.ask(ListBranches(task=task), "p1", timeout=PATIENCE)).branches
                return found[0] if found and found[0].pull_request else None

            view: BranchView = await eventually(opened)
            assert view.pull_request is not None
            assert (view.pull_request.number, view.pull_request.draft) == (1, False)
            [shown] = (await bus.ask(ListLiveTasks(task=task), "p1", timeout=PATIENCE)).tasks
            assert shown.pull_request is not None
            assert shown.pull_request.url == view.pull_request.url
            await bus.ask(OpenPullRequest(branch=view.id, ready=True), "p1", timeout=PATIENCE)
            await bus.ask(MergeBranch(branch=view.id, commit=view.commit), "p1", timeout=PATIENCE)

            async def deleted() -> bool:
                found = (await bus.ask(ListBranches(task=task), "p1", timeout=PATIENCE)).branches
                return found[0].state is BranchState.DELETED

            await eventually(deleted)
        pull = site.shop.pulls[1]
        assert pull.merged
        assert [label.name for label in pull.labels] == ["agent"]
        assert "more.txt" in (pull.body or "")
        assert site.shop.git.head(view.branch) is None
        assert not any(token in str(event) for event in person.events)
        person.check_sequences()


def forges_at(site: Site, token: str) -> Forges:
    """The forge's double, as an operator configures it."""
    forges = Forges([site.repository.host])
    forges.add_sources(site.repository.host, [StoredTokens(lambda: token)])
    return forges


def settings_of(herd: Broker, home: Path, folder: Path, site: Site, token: str) -> Settings:
    """The settings of a spawner that may use this forge."""
    credentials = folder / "git-credentials"
    credentials.write_text(f"{site.double.url.replace('://', f'://x:{token}@')}\n")
    return herd.settings(
        Principal.SPAWNER, home=home, check_interval=0.5, stop_grace=5, isolation="none", max_attempts=1,
        repository_hosts=[site.double.url], git_credentials=credentials,
    )  # fmt: skip
