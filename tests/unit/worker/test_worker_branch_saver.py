"""A branch is saved whatever an agent, which may be hostile, has done to its repository. Git is real."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentBranchSaved
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.emitter import Emitter
from sandherd_worker.exits import StopRequest
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.parts import Parts
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor
from sandherd_worker.repository import branch_saver
from sandherd_worker.repository.branch_saver import BranchSaver
from sandherd_worker.repository.checkout import check_out
from sandherd_worker.repository.identity import identity_of
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import Kind
from tests.task_repositories import BRANCH, Origin, git

SECRET = "hunter2-hunter2"
AS_AGENT = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b; "


class AgentTree:
    """A work tree in which a branch is checked out, and the saver of the branch."""

    def __init__(self, origin: Origin, parts: Parts, spool: Spool, records: Any, said: Any) -> None:
        self.origin, self.parts, self._spool, self._records, self._said = origin, parts, spool, records, said
        self.work = parts.who.work_dir
        self.published: list[EventData] = []
        self.spec = TaskSpec.model_validate({"text": "x", "harness": {"kind": "command", "argv": ["x"]}})
        self.saver = BranchSaver(self.spec, parts)

    async def check_out(self, *, restored: bool = False, **fields: Any) -> bool:
        repository = {**self.origin.checkout(), **fields.pop("repository", {})}
        document = {"text": "Do it", "harness": {"kind": "command", "argv": ["x"]}, "repository": repository, **fields}
        self.spec = TaskSpec.model_validate(document)
        self.saver = BranchSaver(self.spec, self.parts)
        assert self.spec.repository is not None

        async def publish(event: EventData) -> None:
            self.published.append(event)

        return await check_out(self.spec.repository, identity_of(self.spec), self.parts, publish, restored=restored)

    def agent(self, script: str) -> None:
        """What the agent does."""
        ran = subprocess.run(["/bin/bash", "-ec", AS_AGENT + script], cwd=self.work, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()

    async def saved(self) -> AgentBranchSaved:
        """Save the branch; returns the event."""
        assert await self.saver.save() is not None
        event: AgentBranchSaved = self._said(self._spool)[-1].data
        return event

    def events(self) -> list[Any]:
        return [event.data for event in self._said(self._spool)]

    def received(self, saved: AgentBranchSaved) -> Path:
        """A clone of the base that has accepted the bundle."""
        assert saved.bundle is not None
        pieces = [one for one in self._records(self._spool) if one.kind is Kind.ARTIFACT]
        found = [one.payload for one in pieces if one.subject == saved.bundle.subject]
        return self.origin.accepted(b"".join(found), saved)


@pytest.fixture
async def tree(tmp_path: Path, spool: Spool, reaper: Reaper, assignment: Any, records: Any, said: Any) -> AgentTree:
    """The mirror is mounted, but not checked out yet."""
    origin = Origin(tmp_path / "origin")
    who = assignment(
        tmp_path,
        SANDHERD_REPOSITORY=str(origin.mirrored()),
        SANDHERD_MAX_WORK_BYTES="1000000",
        PATH=os.environ["PATH"],
        HOME=str(tmp_path),
    )
    who.work_dir.mkdir()
    emitter = Emitter(spool, who, Redactor([SECRET]))
    parts = Parts(
        who=who,
        spool=spool,
        emitter=emitter,
        inbox=Inbox(who, emitter, DeliveredMessages(tmp_path / "injected")),
        line=CurrentConnection(),
        reaper=reaper,
        ownership=ProcessOwnership(),
        stop=StopRequest(),
    )
    return AgentTree(origin, parts, spool, records, said)


def log(clone: Path) -> list[str]:
    return git(clone, "log", "--format=%s", "saved").splitlines()


def files(clone: Path) -> list[str]:
    return git(clone, "ls-tree", "-r", "--name-only", "saved").splitlines()


async def test_branch_is_published_only_when_it_has_changed(tree: AgentTree) -> None:
    """Once without a bundle while it is unchanged; then with a bundle of all commits for each change."""
    await tree.check_out()
    await tree.saver.save()
    await tree.saver.save()
    tree.agent("echo 1 > one; git add .; git commit -qm One")
    await tree.saver.save()
    await tree.saver.save()
    tree.agent("echo 2 > two")
    await tree.saver.save()
    await tree.saver.save()
    assert [(one.commits, one.committed_rest, one.left_out) for one in tree.events()] == [
        (0, False, None),
        (1, False, None),
        (2, True, None),
    ]
    assert log(tree.received(tree.events()[-1])) == ["Do it", "One", "More"]
    tree.agent('test -z "$(git status --porcelain)"')


UNUSUAL = ["-rf", "--all", "a b", "new\nline", "tab\t", "ünï", "Case", "cASE", ":(top)x", "*", ".gitmodules x", "\\"]


async def test_names_are_never_read_as_options_or_patterns(tree: AgentTree) -> None:
    """Also two that differ in case, a folder in the place of a file, a link in the place of a folder, no UTF-8."""
    await tree.check_out()
    for name in UNUSUAL:
        (tree.work / name).write_text(name)
    Path(os.fsdecode(os.fsencode(tree.work) + b"/\xff")).write_text("x")
    tree.agent("rm README.md; mkdir README.md; echo x > README.md/in; rm -r src; ln -s /etc src; ln -s gone dangling")
    saved = await tree.saved()
    assert (saved.left_out, saved.committed_rest) == (None, True)
    clone = tree.received(saved)
    shown = git(clone, "-c", "core.quotePath=false", "ls-tree", "-r", "-z", "--name-only", "saved").split("\0")
    assert set(shown) - {""} == {*UNUSUAL, "\udcff", "README.md/in", "src", "dangling", ".gitignore"}
    assert git(clone, "cat-file", "blob", "saved:src") == "/etc"


BROKEN: dict[str, tuple[str, str | None, list[str] | None]] = {
    # what the agent does, what the event says is left out, and the commits that are saved
    "index-locked": ("touch .git/index.lock; echo 1 > new", None, ["Do it", "More"]),
    "index-broken": ("echo garbage > .git/index; echo 1 > new", None, ["Do it", "More"]),
    "index-deleted": ("rm .git/index; echo 1 > new", None, ["Do it", "More"]),
    "detached": ("git checkout -q --detach; echo 1 > new", None, ["Do it", "More"]),
    "detached-commit": (
        "git checkout -q --detach; echo 1 > new; git add .; git commit -qm D; echo 2 > more",
        "HEAD is not at",
        None,
    ),
    "other-branch": (
        (
            "echo 1 > one; git add .; git commit -qm One; git checkout -qb mine; echo 2 > two; git add .; "
            "git commit -qm Two; echo 3 > three"
        ),
        "commits of other branches (1), the first of them mine",
        ["One", "More"],
    ),
    "same-commit-other-branch": ("git checkout -qb mine; echo 1 > new", None, ["Do it", "More"]),
    "merging": (
        (
            "git checkout -qb side; echo s > src/a.py; git commit -qam Side; git checkout -q -; echo t > src/a.py; "
            "git commit -qam That; git merge side || true"
        ),
        "was being merged",
        ["Do it", "That", "More"],
    ),
    "rebasing": (
        (
            "echo 1 > src/a.py; git commit -qam One; echo 2 > src/a.py; git commit -qam Two; "
            "GIT_SEQUENCE_EDITOR='sed -i s/^pick/edit/' git rebase -qi HEAD~1"
        ),
        None,
        ["Two", "One", "More"],
    ),
    "amended": (
        "git commit -q --amend -m Amended; echo 1 > new",
        "the history was rewritten",
        ["Do it", "Amended"],
    ),
    "orphan": (
        "git checkout -q --orphan o; git commit -qm Orphan; git branch -f " + BRANCH,
        "the history was rewritten",
        ["Orphan"],
    ),
    "moved-back": ("git update-ref refs/heads/" + BRANCH + " HEAD~0; git reset -q --hard", None, None),
    "branch-deleted": ("git checkout -q --detach; git branch -qD " + BRANCH, "has no branch", None),
    "git-deleted": ("rm -rf .git; echo 1 > new", "has no branch", None),
    "git-is-a-file": ("rm -rf .git; echo gitdir: /nowhere > .git", "has no branch", None),
    "git-is-a-link": ("rm -rf .git; ln -s /nowhere .git", "has no branch", None),
    "head-broken": ("echo nonsense > .git/HEAD; echo 1 > new", "has no branch", None),
    "config-broken": ("echo '[broken' >> .git/config; echo 1 > new", "has no branch", None),
    "objects-deleted": ("echo 1 > new; git add .; git commit -qm N; rm -rf .git/objects; mkdir .git/objects", "", None),
    "giant": ("truncate -s 3000000 giant; echo 1 > new", "1 uncommitted paths (too large)", ["Do it", "More"]),
    "giant-committed": (
        "head -c 3000000 /dev/urandom > giant; git add .; git commit -qm G",
        "more than the limit of 1000000 bytes",
        None,
    ),
    "nested": ("git init -q nested; touch nested/x; echo 1 > new", "a repository of its own", ["Do it", "More"]),
    "nested-commit": (
        "git init -q nested; touch nested/x; git -C nested add .; git -C nested commit -qm N; echo 1 > new",
        "a repository of its own",
        ["Do it", "More"],
    ),
    "pipe": ("mkfifo pipe; rm README.md; mkfifo README.md; echo 1 > new", "not a file", ["Do it", "More"]),
    "submodule-entry": (
        "git update-index --add --cacheinfo 160000," + "1" * 40 + ",sub; git commit -qm Sub; mkdir sub; echo 1 > new",
        None,
        ["Do it", "Sub", "More"],
    ),
    "signing": (
        "git config commit.gpgSign true; git config user.signingKey none; echo 1 > new",
        None,
        ["Do it", "More"],
    ),
    "replaced": (
        "echo 1 > new; git add .; git commit -qm New; git replace HEAD HEAD~1",
        None,
        ["New", "More"],
    ),
    "read-only": ("chmod -R a-w .git; echo 1 > new", None, ["Do it", "More"]),
    "bare": ("git config core.bare true; echo 1 > new", None, ["Do it", "More"]),
    "other-tree": ("git config core.worktree /; echo 1 > new", None, ["Do it", "More"]),
    "partial": (
        (
            "git config extensions.partialClone origin; git config remote.origin.promisor true; "
            "git config remote.origin.url 'ext::touch /tmp/ran'; echo 1 > new"
        ),
        None,
        ["Do it", "More"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_branch_is_saved_from_a_broken_repository(tree: AgentTree, name: str) -> None:
    """What can't be saved is stated; saving never raises."""
    script, left_out, commits = BROKEN[name]
    await tree.check_out()
    tree.agent(script)
    saved = await tree.saved()
    if left_out is None:
        assert saved.left_out is None
    else:
        assert left_out in (saved.left_out or "")
    assert (saved.bundle is None) == (saved.commit is None) == (commits is None)
    if commits is not None:
        assert log(tree.received(saved)) == commits


async def test_oversized_rest_does_not_cost_the_commits(tree: AgentTree) -> None:
    """The bundle has the agent's commits then."""
    await tree.check_out()
    tree.agent(
        "echo 1 > one; git add .; git commit -qm One; for n in 1 2 3; do head -c 400000 /dev/urandom > r$n; done"
    )
    saved = await tree.saved()
    assert (saved.commits, saved.committed_rest) == (1, False)
    assert "more than the limit of 1000000 bytes" in (saved.left_out or "")
    assert log(tree.received(saved)) == ["One", "More"]


async def test_message_of_the_rest_has_no_secret(tree: AgentTree) -> None:
    """It is the first line of the task's text, without secrets and control characters, and names the co-author."""
    env = {
        "GIT_AUTHOR_NAME": "Bot <x>\n",
        "GIT_AUTHOR_EMAIL": "bot@example.org",
        "SANDHERD_CO_AUTHOR": "Ann Example <ann@example.org>",
    }
    text = f"\n  Use {SECRET} \x1b[31mto\ttest {'very ' * 20}\nmore"
    await tree.check_out(text=text, env=env)
    tree.agent("echo 1 > new")
    clone = tree.received(await tree.saved())
    message = git(clone, "log", "-1", "--format=%an|%ae|%cn%n%B", "saved")
    assert SECRET not in message
    lines = message.splitlines()
    assert lines[0] == "Bot x|bot@example.org|Bot x"
    assert lines[1].startswith("Use [redacted] [31mto test very")
    assert len(lines[1]) <= 72
    assert lines[-2:] == ["Sandherd-Task: task-1", "Co-authored-by: Ann Example <ann@example.org>"]


async def test_file_with_a_secret_is_not_committed(tree: AgentTree) -> None:
    """A file that an agent has written its key to is left out, and stated."""
    await tree.check_out(env={"API_KEY": SECRET}, secret_env=["API_KEY"])
    tree.agent(f"echo KEY={SECRET} > .env; echo 1 > new")
    saved = await tree.saved()
    assert "1 uncommitted paths (with a secret of the task), the first of them '.env'" in (saved.left_out or "")
    assert files(tree.received(saved)) == [".gitignore", "README.md", "new", "src/a.py"]


HOSTILE = """
dump='env > "$OUT/$$.env"; ls -l /proc/$$/fd > "$OUT/$$.fd"; cat >/dev/null 2>&1 || true'
mkdir -p .git/hooks
for hook in pre-commit commit-msg post-commit reference-transaction post-index-change post-checkout pre-auto-gc; do
  printf '#!/bin/sh\\nexport OUT=%s; echo '$hook' >> %s/hooks; %s\\n' "$OUT" "$OUT" "$dump" > .git/hooks/$hook
  chmod +x .git/hooks/$hook
done
printf '#!/bin/sh\\nexport OUT=%s; echo fsmonitor >> %s/hooks; %s\\n' "$OUT" "$OUT" "$dump" > .git/monitor
printf '#!/bin/sh\\nexport OUT=%s; echo filter >> %s/ran; env > %s/$$.env; ls -l /proc/$$/fd > %s/$$.fd; cat\\n' \
  "$OUT" "$OUT" "$OUT" "$OUT" > .git/filter
chmod +x .git/monitor .git/filter
git config core.fsmonitor "$PWD/.git/monitor"
git config core.hooksPath "$PWD/.git/hooks"
git config filter.spy.clean "$PWD/.git/filter"
git config filter.spy.smudge "$PWD/.git/filter"
git config gpg.program "$PWD/.git/monitor"
git config commit.gpgSign true
git config credential.helper "$PWD/.git/monitor"
git config core.sshCommand "$PWD/.git/monitor"
git config core.editor "$PWD/.git/monitor"
git config core.pager "$PWD/.git/monitor"
git config core.askPass "$PWD/.git/monitor"
git config diff.external "$PWD/.git/monitor"
echo '* filter=spy' > .gitattributes
rm -f "$OUT"/*
echo 1 > new
"""


async def test_programs_of_the_repository_see_no_secret(
    tree: AgentTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks do not run at all; a filter runs, without variables and descriptors of the worker or the task."""
    monkeypatch.setenv("SANDHERD_CREDENTIALS", "/secret/place")
    monkeypatch.setenv("A_SECRET", SECRET)
    out = tmp_path / "out"
    out.mkdir()
    await tree.check_out(env={"API_KEY": SECRET}, secret_env=["API_KEY"])
    tree.agent(f"export OUT={out};" + HOSTILE)
    saved = await tree.saved()
    assert saved.left_out is None
    assert files(tree.received(saved)) == [".gitattributes", ".gitignore", "README.md", "new", "src/a.py"]
    assert (out / "ran").exists(), "the filter has run: this test sees what such a program sees"
    assert not (out / "hooks").exists(), (out / "hooks").read_text()
    variables = "".join(path.read_text() for path in out.glob("*.env"))
    assert SECRET not in variables
    assert not {"API_KEY", "NATS", "CREDENTIALS", "TASK_FILE"} & {
        name for name in ("API_KEY", "NATS", "CREDENTIALS", "TASK_FILE") if name in variables
    }
    descriptors = "".join(path.read_text() for path in out.glob("*.fd"))
    assert "socket:" not in descriptors
    assert str(tree.parts.who.state_dir / "spool") not in descriptors


async def test_process_that_a_filter_leaves_behind_is_ended(
    tree: AgentTree, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Also one with a session of its own that holds git's output open."""
    await tree.check_out()
    pid = tmp_path / "pid"
    script = f"#!/bin/sh\nsetsid sh -c 'echo $$ > {pid}; exec sleep 600' >/dev/null &\ncat\n"
    (tree.work / ".git/filter").write_text(script)
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    assert (await tree.saved()).committed_rest
    process = int(pid.read_text())
    await eventually(lambda: not Path(f"/proc/{process}").exists(), "its end")


async def test_filter_that_never_ends_is_ended_in_time(
    tree: AgentTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits are saved without the rest."""
    monkeypatch.setattr(branch_saver, "REST_SECONDS", 1.0)
    await tree.check_out()
    (tree.work / ".git/filter").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("echo 1 > one; git add .; git commit -qm One")
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    saved = await tree.saved()
    assert (saved.commits, saved.committed_rest) == (1, False)
    assert "what was not committed: it took longer than 1 s" in (saved.left_out or "")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_late_save_is_reported_and_its_processes_ended(tree: AgentTree, tmp_path: Path) -> None:
    """After the share of the grace period that saving has; a filter that never ends does not delay the worker."""
    await tree.check_out()
    (tree.work / ".git/filter").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    (tree.work / ".git/filter").chmod(0o755)
    tree.agent("git config filter.spy.clean $PWD/.git/filter; echo 'new filter=spy' > .gitattributes; echo 1 > new")
    object.__setattr__(tree.parts.who, "stop_grace", 1.0)
    tree.parts.stop.terminate()
    saved = await tree.saved()
    assert (saved.bundle, saved.left_out) == (None, "the sandbox had to end before the branch was saved")
    pid = tmp_path / "pid"
    assert not pid.exists() or not Path(f"/proc/{pid.read_text().strip()}").exists()


# --- continuing a restored work tree


async def test_restored_work_tree_is_continued(tree: AgentTree) -> None:
    """With the agent's commits after the saved ones, and what it had not committed."""
    await tree.check_out()
    tree.agent("echo 1 > one; git add .; git commit -qm One; echo 2 > two")
    assert await tree.check_out(restored=True)
    assert tree.published == []
    assert (tree.work / "two").exists()
    assert log(tree.received(await tree.saved())) == ["Do it", "One", "More"]


async def test_restored_work_tree_gets_commits_that_were_saved_since(tree: AgentTree) -> None:
    """A branch that has more commits by now is continued from its last one."""
    await tree.check_out()
    tree.agent("echo mine > mine")
    tree.origin.continue_branch({"src/a.py": "a = 2\n"})
    tree.origin.mirrored()
    assert await tree.check_out(restored=True)
    assert (tree.published, (tree.work / "src/a.py").read_text()) == ([], "a = 2\n")
    assert log(tree.received(await tree.saved())) == ["Do it", "Earlier work", "More"]


DIVERGED = {
    "commits": "echo 1 > one; git add .; git commit -qm Other",
    "files": "echo dirty > src/a.py",
    "no-repository": "rm -rf .git",
    "broken": "rm .git/HEAD",
    "elsewhere": "git checkout -q --detach; git commit -q --allow-empty -m D",
    "hooked": "git config core.hooksPath /; rm -rf .git/refs; echo > .git/packed-refs",
}


@pytest.mark.parametrize("name", DIVERGED)
async def test_saved_branch_wins_over_a_restored_one(tree: AgentTree, tmp_path: Path, name: str) -> None:
    """An error is published, the attempt begins from the checkout, and the restored files are beside it."""
    await tree.check_out()
    tree.agent("echo left > left;" + DIVERGED[name])
    tree.origin.continue_branch({"src/a.py": "a = 2\n"})
    tree.origin.mirrored()
    object.__setattr__(tree.parts.who, "previous_dir", tmp_path / "previous")
    assert not await tree.check_out(restored=True)
    (error,) = tree.published
    assert json.loads(error.model_dump_json())["phase"] == "repository"
    assert (tree.work / "src/a.py").read_text() == "a = 2\n"
    assert not (tree.work / "left").exists()
    assert (tmp_path / "previous/work/left").read_text() == "left\n"
    saved = await tree.saved()
    assert (saved.commit, saved.bundle, saved.left_out) == (None, None, None)
