"""Which paths of a branch need approval after its base has moved; real git merges."""

from datetime import UTC, datetime

from sandherd.settings.repositories import RepositorySettings
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import RemoteRepository
from spawner.repositories.mirror import Mirror
from spawner.repositories.path_approval import PathApproval
from tests.integration.repositories.conftest import Upstream, commit, git

WORKFLOW, NOW = ".github/workflows/ci.yml", datetime(2026, 11, 20, tzinfo=UTC)

PLAIN = "".join(f"step: {number}\n" for number in range(20))
CHANGES = {"changed": {WORKFLOW: "of an agent\n"}, "renamed": {"plain.yml": f"{PLAIN}step: of an agent\n"}}


async def test_merge_of_the_base_needs_approval_if_it_reverts_a_workflow(
    mirror: Mirror, remote: RemoteRepository, upstream: Upstream
) -> None:
    """A merge that discards the base's change of a workflow needs approval; one that contains it does not.

    A change of a file that the base has moved to the workflows since then needs it, too.
    """
    base = upstream.commit({WORKFLOW: "old\n", "plain.yml": PLAIN})
    clone, names = upstream.clone, ("ours", "honest", "behind", "changed", "renamed")
    for name in names:
        git(clone, "checkout", "--quiet", "-b", name, "main")
        commit(clone, {name: "work\n"} | CHANGES.get(name, {}))
    git(clone, "checkout", "--quiet", "main")
    upstream.commit({WORKFLOW: "hardened\n"})
    for name, how in (("ours", ("-s", "ours")), ("honest", ())):
        git(clone, "checkout", "--quiet", name)
        git(clone, "merge", "--quiet", *how, "--message", "merge", "main")
    git(clone, "checkout", "--quiet", "main")
    (clone / ".github/workflows/plain.yml").write_text(PLAIN)
    (clone / "plain.yml").unlink()
    upstream.commit({WORKFLOW: "hardened again\n"})
    git(clone, "push", "--quiet", "origin", *names)
    await mirror.fetch(remote)

    async def needs(name: str) -> tuple[str, ...]:
        record = BranchRecord(
            project="p1", id="br-1", life="0" * 32, tasks=("task-1",), repository="r", branch=name, base="main",
            base_commit=base, commit=git(clone, "rev-parse", name), created_at=NOW, updated_at=NOW,
        )  # fmt: skip
        return await PathApproval(RepositorySettings().repository_approval).paths(mirror, record, "main")

    assert {name: await needs(name) for name in names} == {
        "ours": (WORKFLOW,), "honest": (), "behind": (), "changed": (WORKFLOW,),
        "renamed": (".github/workflows/plain.yml",),
    }  # fmt: skip
