"""Tasks with a repository and `sandherd branches`, with a real broker and real git; the spawner is a double."""

import asyncio
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd.client import Herd, HerdError
from sandherd.client.herd import task_spec
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.branch import BranchSaved
from sandherd.contracts.repositories import SHARED_BUNDLES, Repository
from sandherd.contracts.requests import BranchView, DownloadChunk, ListBranches
from sandherd.contracts.states import BranchState, TaskState
from sandherd.contracts.subjects import Principal
from tests.integration.client.conftest import Neighbours, a_task
from tests.integration.client.stored_branches import ID, TASK, URL, StoredBranches, a_branch
from tests.local_git import BRANCH, REF, Git, clone, new_repository
from tests.polling import eventually

Sandherd = Callable[..., Any]


class Typed(io.StringIO):
    """A terminal on which one line is typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
async def branches(neighbours: Neighbours) -> StoredBranches:
    found = StoredBranches()
    await found.answer_all(neighbours)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Git:
    """A user's repository with one commit."""
    git = new_repository(tmp_path / "web")
    git.commit("file", "one\ntwo\n")
    return git


def saved(branches: StoredBranches, local: Git, tmp_path: Path, **fields: Any) -> BranchView:
    """A stored branch of a local repository with a commit of a sandbox; returns its view."""
    base = local("rev-parse", "main")
    sandbox = clone(local.folder, tmp_path / "sandbox")
    sandbox("checkout", "--quiet", "-b", BRANCH)
    commit = sandbox.commit("file", "one\n2\n")
    bundle = sandbox.bundle(tmp_path / "bundle", REF, f"^{base}").read_bytes()
    patch = f"{sandbox('diff', 'main', BRANCH)}\n".encode()
    known = {
        "local": True, "repository": "web", "base_commit": base, "commit": commit, "pushed_commit": None,
        "commits": 1, "files_changed": 1, "additions": 1, "deletions": 1,
        "bundle": branches.artifact("bundle-0001", bundle), "diff": branches.artifact("diff-0001", patch),
    }  # fmt: skip
    return a_branch(**(known | fields))


async def submitted(neighbours: Neighbours) -> tuple[str, Repository]:
    """The next submitted task, and its repository."""
    command: Any = await neighbours.take(Principal.SPAWNER)
    return command.subject, command.data.spec.repository


# --- submission --------------------------------------------------------------------------------------------------


async def test_run_uploads_a_local_repository(
    neighbours: Neighbours, branches: StoredBranches, sandherd: Sandherd, local: Git, tmp_path: Path
) -> None:
    """The current branch is uploaded under the task's name; standard error states what is not committed."""
    (local.folder / "file").write_text("not committed\n")
    options = ["--repo", str(local.folder), "--ticket", "#7", "--no-commit-rest", "--no-follow"]
    status, task, err = await sandherd("run", "do it", *options, "--", "true")
    assert status == 0
    assert f"warning: 1 change in {local.folder} is not committed" in err
    name, repository = await submitted(neighbours)
    assert name == task.strip()
    assert repository.bundle is not None
    assert repository == Repository(
        bundle=repository.bundle, label="web", base="main", ticket="#7", commit_rest=False, push=False
    )
    assert repository.bundle.subject.split(".")[-2] == name
    assert repository.bundle.media_type == "application/x-git-bundle"
    (tmp_path / "uploaded").write_bytes(branches.content(repository.bundle))
    assert local("bundle", "list-heads", str(tmp_path / "uploaded")) == f"{local('rev-parse', 'main')} refs/heads/main"


async def test_run_names_a_repository_by_its_url(
    neighbours: Neighbours, branches: StoredBranches, sandherd: Sandherd
) -> None:
    """Nothing is uploaded for a repository that is named by its URL."""
    options = ["--repo", URL, "--base", "develop", "--ticket", "PROJ-7", "--join", "--no-push", "--no-follow"]
    assert (await sandherd("run", "do it", *options, "--", "true"))[0] == 0
    wanted = Repository(url=URL, base="develop", ticket="PROJ-7", join=True, push=False)
    assert (await submitted(neighbours))[1] == wanted
    assert not branches.uploaded


async def test_program_submits_with_a_repository(
    neighbours: Neighbours, branches: StoredBranches, client: Herd, local: Git
) -> None:
    """A program submits a path or a URL; anything else is refused, and nothing is uploaded."""
    task = await client.submit("do it", ["true"], repository=local.folder)
    name, repository = await submitted(neighbours)
    assert (name, repository.label) == (task, "web")
    await client.submit("do it", ["true"], repository=URL)
    assert (await submitted(neighbours))[1] == Repository(url=URL)
    branches.uploaded.clear()
    twice = task_spec("do it", ["true"], repository=Repository(url=URL))
    with pytest.raises(HerdError) as refused:
        await client.submit(twice, repository=local.folder)
    assert refused.value.problem.field == "repository"
    assert not branches.uploaded


async def test_tasks_of_a_file_have_repositories(
    neighbours: Neighbours, branches: StoredBranches, sandherd: Sandherd, local: Git, tmp_path: Path
) -> None:
    """A path is relative to the file's folder; tasks of one commit share a bundle, which is uploaded once."""
    file = tmp_path / "tasks.yaml"
    file.write_text(
        "tasks:\n"
        "- {name: one, text: do it, argv: ['true'], repository: {path: web, ticket: '7'}}\n"
        "- {name: two, text: do it, argv: ['true'], repository: web}\n"
        f"- {{name: three, text: do it, argv: ['true'], repository: {{url: '{URL}', base: develop}}}}\n"
    )
    running = asyncio.ensure_future(sandherd("tasks", "submit", str(file), "-o", "json"))
    one, two, three = [(await submitted(neighbours))[1] for _ in range(3)]
    await running
    assert (one.label, one.ticket, two.label, three) == ("web", "7", "web", Repository(url=URL, base="develop"))
    assert one.bundle is not None
    assert one.bundle == two.bundle
    assert [owner for owner, _ in branches.uploaded] == [SHARED_BUNDLES]


@pytest.mark.parametrize("saving", [False, True], ids=["at once", "later"])
async def test_run_ends_with_the_branch(
    neighbours: Neighbours, branches: StoredBranches, sandherd: Sandherd, local: Git, tmp_path: Path, saving: bool
) -> None:
    """`run` shows the commit, its size and the command that fetches it, after the last commits are checked."""
    running = asyncio.ensure_future(sandherd("run", "do it", "--repo", str(local.folder), "--", "true"))
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    view = saved(branches, local, tmp_path, tasks=[neighbours.task])
    unsaved = {"saving": True, "commit": view.base_commit, "commits": 0, "bundle": None, "diff": None}
    branches.views = [view.model_copy(update=unsaved) if saving else view]
    await neighbours.begin()
    await neighbours.complete()
    if saving:
        await eventually(lambda: any(isinstance(one, ListBranches) for one in neighbours.requested))
        branches.views = [view]
        size: dict[str, Any] = {"commits": 1, "files_changed": 1, "additions": 1, "deletions": 1}
        event = BranchSaved(repository="web", branch=BRANCH, commit=view.commit, **size)
        await neighbours.publish_event(neighbours.task_source, event)
    status, out, _ = await running
    assert status == 0
    assert out.splitlines()[-2:] == [
        f"{BRANCH} at {view.commit[:12]}: 1 commit, +1 −1 in 1 file",
        f"get it into your repository with `sandherd branches fetch {BRANCH}`",
    ]


# --- branches ----------------------------------------------------------------------------------------------------


async def test_branches_are_listed(
    branches: StoredBranches, sandherd: Sandherd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches are listed by state and task: as names, documents, and a table of at most 80 columns."""
    other = "br-ffffffffffffffffffff"
    branches.views = [
        a_branch(branch="feature/" + "long-" * 11 + "x", problem="the credential does not permit it", approve=["x"]),
        a_branch(id=other, state=BranchState.MERGED, tasks=["task-other"]),
    ]
    assert (await sandherd("branches", "list", "-o", "name"))[1].split() == [ID, other]
    assert (await sandherd("branches", "list", "--state", "merged", "-o", "name"))[1].split() == [other]
    assert (await sandherd("branches", "list", "--task", "task-other", "-o", "name"))[1].split() == [other]
    document = json.loads((await sandherd("branches", "list", "-o", "json"))[1])
    assert [one["id"] for one in document["branches"]] == [ID, other]
    assert len((await sandherd("branches", "list", "-o", "jsonl"))[1].splitlines()) == 2
    wide = (await sandherd("branches", "list", "-o", "wide"))[1]
    assert all(text in wide for text in (ID, URL, TASK, "+34 −5", branches.views[0].branch))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = (await sandherd("branches", "list"))[1].splitlines()
    assert len(shown) == 3
    assert max(map(len, shown)) <= 80
    assert "CHANGES" in shown[0]


async def test_branch_is_named_in_several_ways(
    branches: StoredBranches, neighbours: Neighbours, sandherd: Sandherd
) -> None:
    """A branch is found by its name, its id, a task that works on it, and the beginning of each."""
    from sandherd.contracts.states import TaskState
    from tests.integration.client.conftest import a_task

    branches.views = [a_branch()]
    for name in (BRANCH, ID, ID[:9], TASK, TASK[:12]):
        neighbours.tasks = {TASK: a_task(TASK, TaskState.COMPLETED)} if name == TASK[:12] else {}
        status, out, err = await sandherd("branches", "show", name, "-o", "name")
        assert (status, out, err) == (0, f"{ID}\n", ""), name


async def test_ambiguous_and_unknown_branches_are_errors(branches: StoredBranches, sandherd: Sandherd) -> None:
    """The error names the matches; a live branch precedes a deleted one of the same name."""
    second = "br-0f3a5c" + "f" * 14
    branches.views = [a_branch(), a_branch(id=second, repository="https://git.example.org/demo/web")]
    for name in (BRANCH, "br-0f3a5c"):
        status, _, err = await sandherd("branches", "show", name)
        assert status == 2
        assert ID in err
        assert second in err
    branches.views[0] = branches.views[0].model_copy(update={"state": BranchState.DELETED})
    assert (await sandherd("branches", "show", BRANCH, "-o", "name"))[1].strip() == second
    status, _, err = await sandherd("branches", "show", "feature/other")
    assert (status, "there is no branch feature/other" in err, "branches list" in err) == (1, True, True)


PROGRESS: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({}, f"pushed to {URL}"),
    ({"pushed_commit": None, "pushing": True}, f"not pushed yet; see `sandherd branches show {BRANCH}`"),
    ({"pushed_commit": None}, f"not pushed; push it with `sandherd branches push {BRANCH}`"),
    (
        {"pushed_commit": None, "approve": [".github/workflows/ci.yml"], "problem": "not pushed: it needs approval"},
        f"approve them with `sandherd branches push {BRANCH} --approve-paths`",
    ),
    ({"local": True}, f"get it into your repository with `sandherd branches fetch {BRANCH}`"),
    ({"saving": True}, "still being checked"),
    ({"problem": "commits refused: forged", "commits": 0}, "problem: commits refused: forged"),
)
"""The differences of a branch, and what is then shown."""


async def test_show_states_what_prevents_progress(branches: StoredBranches, sandherd: Sandherd) -> None:
    """`show` states what prevents progress, and the command that continues."""
    for fields, expected in PROGRESS:
        branches.views = [a_branch(**fields)]
        status, out, _ = await sandherd("branches", "show", BRANCH)
        assert status == 0
        assert expected in out
        assert (".github/workflows/ci.yml" in out) is ("approve" in fields)


async def test_branch_is_fetched_into_a_local_repository(
    branches: StoredBranches, sandherd: Sandherd, local: Git, tmp_path: Path
) -> None:
    """The branch is fetched under the same name; the second time nothing is left to do."""
    branches.views = [view := saved(branches, local, tmp_path)]
    status, out, err = await sandherd("branches", "fetch", BRANCH, "--into", str(local.folder))
    assert (status, err) == (0, "")
    assert f"`git diff main...{BRANCH}`" in out
    assert local("rev-parse", REF) == view.commit
    assert local("status", "--porcelain") == ""
    _, out, _ = await sandherd("branches", "fetch", TASK, "--into", str(local.folder), "-o", "json")
    assert json.loads(out) == {
        "branch": BRANCH, "commit": view.commit, "repository": str(local.folder), "previous": view.commit,
        "changed": False,
    }  # fmt: skip


async def test_bundle_that_is_not_what_was_stored_is_refused(
    neighbours: Neighbours, branches: StoredBranches, client: Herd, local: Git, tmp_path: Path
) -> None:
    """A bundle of another project, with other bytes than its reference, expired, or missing fetches nothing."""
    view = saved(branches, local, tmp_path)
    assert view.bundle is not None
    foreign = view.bundle.model_copy(update={"subject": view.bundle.subject.replace("default", "other")})
    branches.views = [view.model_copy(update={"bundle": foreign})]
    with pytest.raises(HerdError, match="not the subject of an artifact"):
        await client.fetch_branch(BRANCH, local.folder)
    branches.views = [view]
    *first, last = branches.artifacts["bundle-0001"]
    branches.artifacts["bundle-0001"] = bytes([*first, last ^ 1])
    with pytest.raises(HerdError):
        await client.fetch_branch(BRANCH, local.folder)
    await neighbours.answer(Principal.SPAWNER, DownloadChunk, lambda _: Problem(code=Code.NOT_FOUND, message="gone"))
    with pytest.raises(HerdError, match="expires after 7 days"):
        await client.fetch_branch(BRANCH, local.folder)
    branches.views = [view.model_copy(update={"bundle": None, "problem": "commits refused: forged"})]
    with pytest.raises(HerdError, match="commits refused: forged") as nothing:
        await client.fetch_branch(BRANCH, local.folder)
    assert nothing.value.problem.code is Code.CONFLICT
    assert local("for-each-ref", REF) == ""


@pytest.mark.parametrize(
    "words", [("branches", "diff", BRANCH), ("branches", "diff", TASK), ("diff", TASK)], ids=" ".join
)
async def test_diff_of_a_branch_applies(
    branches: StoredBranches,
    neighbours: Neighbours,
    started: Callable[..., Any],
    local: Git,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    """A diff is unchanged in a pipe; `sandherd diff` of a task with a repository is that of its branch."""
    branches.views = [saved(branches, local, tmp_path)]
    neighbours.tasks[TASK] = a_task(TASK, TaskState.COMPLETED).model_copy(update={"repository": "web"})
    process = await started(*words)
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out == branches.artifacts["diff-0001"]
    local("apply", "-", stdin=out)
    assert (local.folder / "file").read_text() == "one\n2\n"


async def test_diff_that_is_too_large_names_the_alternative(branches: StoredBranches, sandherd: Sandherd) -> None:
    """The error for a large diff names the alternative; a branch without changes has an empty diff."""
    branches.views = [a_branch()]
    status, out, err = await sandherd("branches", "diff", BRANCH)
    assert (status, out) == (2, "")
    assert f"sandherd branches fetch {ID}" in err
    branches.views = [a_branch(files_changed=0)]
    assert await sandherd("branches", "diff", BRANCH) == (0, "", "")


async def test_push_waits_for_the_outcome(branches: StoredBranches, sandherd: Sandherd) -> None:
    """The exit status is that of the push; a refusal is shown with its reason."""
    branches.views = [a_branch(pushed_commit=None)]
    branches.on_push = lambda view: view.model_copy(update={"pushed_commit": view.commit})
    status, out, _ = await sandherd("branches", "push", BRANCH)
    assert (status, f"pushed to {URL}" in out) == (0, True)
    assert (branches.pushes[0].branch, branches.pushes[0].approved_commit) == (ID, None)
    assert branches.pushes[0].requested_by
    branches.views = [a_branch(pushed_commit=None)]
    branches.on_push = lambda view: view.model_copy(update={"problem": "not pushed: the token has expired"})
    status, out, _ = await sandherd("branches", "push", BRANCH)
    assert (status, "the token has expired" in out) == (1, True)


async def test_approval_of_paths_is_confirmed(
    branches: StoredBranches, sandherd: Sandherd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal shows the paths first; without one `--yes` confirms; paths not known yet can't be approved."""
    paths = [".github/workflows/ci.yml", "\x1b[2Jx"]
    branches.views = [a_branch(pushed_commit=None)]
    status, _, err = await sandherd("branches", "push", BRANCH, "--approve-paths", "--yes")
    assert (status != 0, branches.pushes) == (True, [])
    assert "push it without --approve-paths" in err
    branches.views = [a_branch(pushed_commit=None, approve=paths)]
    status, _, err = await sandherd("branches", "push", BRANCH, "--approve-paths")
    assert (status, branches.pushes) == (2, [])
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    status, _, err = await sandherd("branches", "push", BRANCH, "--approve-paths")
    assert (status, branches.pushes) == (130, [])
    assert "  .github/workflows/ci.yml\n" in err
    assert "\x1b" not in err
    monkeypatch.setattr("sys.stdin", Typed("Yes\n"))
    branches.on_push = lambda view: view.model_copy(update={"pushed_commit": view.commit, "approve": []})
    assert (await sandherd("branches", "push", BRANCH, "--approve-paths"))[0] == 0
    branches.views = [a_branch(pushed_commit=None, approve=paths)]
    assert (await sandherd("branches", "push", BRANCH, "--approve-paths", "--yes"))[0] == 0
    assert [push.approved_commit for push in branches.pushes] == [branches.views[0].commit] * 2


async def test_branch_is_deleted_once_confirmed(branches: StoredBranches, sandherd: Sandherd) -> None:
    """Commits are not deleted without a question; the status is 1 if the repository refuses."""
    branches.views = [a_branch()]
    status, _, err = await sandherd("branches", "delete", BRANCH)
    assert (status, branches.deletions) == (2, [])
    assert "its commits are lost" in err
    branches.on_delete = lambda view: view.model_copy(update={"problem": "not deleted: it is protected"})
    status, out, _ = await sandherd("branches", "delete", BRANCH, "--yes")
    assert (status, "it is protected" in out) == (1, True)
    branches.on_delete = lambda view: view.model_copy(update={"state": BranchState.DELETED})
    branches.views = [a_branch(commits=0)]
    status, out, _ = await sandherd("branches", "delete", BRANCH, "--here")
    assert (status, out) == (0, f"{BRANCH} is deleted\n")
    assert [one.where for one in branches.deletions] == ["everywhere", "here"]
