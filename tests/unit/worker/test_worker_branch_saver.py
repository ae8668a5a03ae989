"""A branch is saved whatever an agent, which may be hostile, has done to its repository. Git is real."""

import os
from pathlib import Path

import pytest

from tests.task_repositories import BRANCH, git
from tests.unit.worker.agent_tree import SECRET, AgentTree, files, log


async def test_branch_is_published_only_when_it_has_changed(tree: AgentTree) -> None:
    """An unchanged branch has one event without a bundle, and each change one with a bundle of all commits."""
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
    """Unusual file names and changes of a file's kind are committed as they are.

    They include names that differ in case only, names that are not UTF-8, and a folder or a link that replaces a file.
    """
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
    "submodule-changed": (
        (
            "git init -q sub; git -C sub commit -q --allow-empty -m S; git add sub; git commit -qm Sub; "
            "git -C sub commit -q --allow-empty -m T; touch sub/x; echo 1 > new"
        ),
        "1 uncommitted paths (not a file: a repository of its own, or a pipe), the first of them 'sub'",
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
    """The event states what can't be saved; saving never raises."""
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
    """If the uncommitted changes are too large, the bundle has the agent's commits without them."""
    await tree.check_out()
    tree.agent(
        "echo 1 > one; git add .; git commit -qm One; for n in 1 2 3; do head -c 400000 /dev/urandom > r$n; done"
    )
    saved = await tree.saved()
    assert (saved.commits, saved.committed_rest) == (1, False)
    assert "more than the limit of 1000000 bytes" in (saved.left_out or "")
    assert log(tree.received(saved)) == ["One", "More"]


async def test_message_of_the_rest_has_no_secret(tree: AgentTree) -> None:
    """The message is the first line of the task's text, without secrets and control characters, and a co-author."""
    env = {
        "GIT_AUTHOR_NAME": "Bot <x>\n",
        "GIT_AUTHOR_EMAIL": "bot@example.org",
    }
    person = {"name": "Ann Example", "email": "ann@example.org"}
    text = f"\n  Use {SECRET} \x1b[31mto\ttest {'very ' * 20}\nmore"
    await tree.check_out(text=text, env=env, co_author=person)
    tree.agent("echo 1 > new")
    clone = tree.received(await tree.saved())
    message = git(clone, "log", "-1", "--format=%an|%ae|%cn%n%B", "saved")
    assert SECRET not in message
    lines = message.splitlines()
    assert lines[0] == "Bot x|bot@example.org|Bot x"
    assert lines[1].startswith("Use [redacted] [31mto test very")
    assert len(lines[1]) <= 72
    assert lines[-2:] == ["Sandherd-Task: task-1", "Co-authored-by: Ann Example <ann@example.org>"]


async def test_commits_of_the_agent_name_the_co_author(tree: AgentTree) -> None:
    """Each commit has the co-author once, also after an amendment; a message from an editor is unchanged."""
    await tree.check_out(co_author={"name": 'Ann $(touch x) "A"', "email": "ann@example.org"})
    tree.agent(
        "echo 1 > one; git add .; git commit -qm One; git commit -q --amend --no-edit --no-verify;"
        "echo 2 > two; git add .; printf 'Two\n\nRefs: 7\n' | git commit -qF -;"
        "echo 3 > three; git add .; GIT_EDITOR='echo Three >' git commit -q; test ! -e x"
    )
    clone = tree.received(await tree.saved())
    trailer = 'Co-authored-by: Ann $(touch x) "A" <ann@example.org>'
    messages = git(clone, "log", "--reverse", "--format=%B%x00", f"{tree.origin.base}..saved").split("\0")
    assert [one.split() for one in messages[:3]] == [
        one.split() for one in (f"One\n\n{trailer}", f"Two\n\nRefs: 7\n{trailer}", "Three")
    ]


async def test_file_with_a_secret_is_not_committed(tree: AgentTree) -> None:
    """A file with a key of the task is left out, and the event states that."""
    await tree.check_out(env={"API_KEY": SECRET}, secret_env=["API_KEY"])
    tree.agent(f"echo KEY={SECRET} > .env; echo 1 > new")
    saved = await tree.saved()
    assert "1 uncommitted paths (with a secret of the task), the first of them '.env'" in (saved.left_out or "")
    assert files(tree.received(saved)) == [".gitignore", "README.md", "new", "src/a.py"]
