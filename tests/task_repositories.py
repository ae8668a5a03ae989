"""Git repositories of tasks for tests: an origin, its mirror, and the commits that come back in a bundle."""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from sandherd.contracts.names import new_name

BRANCH, BASE = "feature/add-a-thing", "main"
OWNER = "task-owner"
_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "Author",
    "GIT_COMMITTER_EMAIL": "author@example.org",
}


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    """Run git in a folder; returns its output."""
    ran = subprocess.run(
        ["git", *arguments], cwd=folder, env=_ENVIRONMENT, input=stdin, capture_output=True, check=False
    )
    assert ran.returncode == 0, (arguments, ran.stderr.decode(errors="replace"))
    return ran.stdout.decode("utf-8", "surrogateescape").strip()


@cache
def _beginning(kind: str) -> Path:
    """Create the repository of one commit that each origin begins as a copy of, and an empty mirror."""
    folder = Path(tempfile.mkdtemp(prefix="origin-"))
    source = folder / "source"
    (source / "src").mkdir(parents=True)
    for name, text in {"README.md": "hello\n", "src/a.py": "a = 1\n", ".gitignore": "build/\n"}.items():
        (source / name).write_text(text)
    git(source, "init", "--quiet", "--template=", "--initial-branch", BASE, "--object-format", kind)
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", "More")
    git(source, "branch", BRANCH)
    git(source, "init", "--quiet", "--bare", "--template=", "--object-format", kind, str(folder / "mirror.git"))
    return folder


class Origin:
    """A repository with a base branch and a task's branch, and a mirror of it."""

    def __init__(self, folder: Path, kind: str = "sha1") -> None:
        self.source, self.mirror = folder / "source", folder / "mirror.git"
        shutil.copytree(_beginning(kind), folder, dirs_exist_ok=True)
        self.base = self.tip = git(self.source, "rev-parse", "HEAD")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_text(text)

    def commit(self, message: str = "More") -> str:
        git(self.source, "add", "--all")
        git(self.source, "commit", "--quiet", "--allow-empty", "--message", message)
        return git(self.source, "rev-parse", "HEAD")

    def continue_branch(self, files: dict[str, str]) -> str:
        """Add a commit to the task's branch, as if an earlier attempt had saved it."""
        git(self.source, "checkout", "--quiet", BRANCH)
        self.write(files)
        self.tip = self.commit("Earlier work")
        git(self.source, "checkout", "--quiet", BASE)
        return self.tip

    def mirrored(self) -> Path:
        """Update the mirror, as the spawner has it: the remote's branches are under `origin`."""
        refs = (f"+refs/heads/{BASE}:refs/remotes/origin/{BASE}", f"+refs/heads/{BRANCH}:refs/heads/{BRANCH}")
        git(self.mirror, "fetch", "--quiet", str(self.source), *refs)
        return self.mirror

    def checkout(self, **fields: Any) -> dict[str, Any]:
        """The field `repository` of the task."""
        found = {"branch": BRANCH, "base": BASE, "commit": self.tip, "base_commit": self.base, **fields}
        return {"url": "https://example.org/owner/name", "checkout": found}

    def by_mirror(self, sandbox: Any, **more: Any) -> dict[str, Any]:
        """The field `repository` of a task whose sandbox has the mirror mounted."""
        sandbox.environment["SANDHERD_REPOSITORY"] = str(self.mirrored())
        return {**self.checkout(), **more}

    async def by_bundle(self, sandbox: Any, **more: Any) -> dict[str, Any]:
        """The field `repository` of a task whose sandbox gets the branch as an artifact."""
        file = self.source.parent / f"{new_name('b')}.bundle"
        git(self.source, "bundle", "create", "--quiet", str(file), f"refs/heads/{BRANCH}", f"refs/heads/{BASE}")
        reference = await sandbox.put_aside(file.read_bytes(), OWNER)
        return {**self.checkout(bundle=reference.model_dump(), owner=OWNER), **more}

    async def received(self, sandbox: Any, saved: Any) -> Path:
        """Import the saved bundle into a clone that has only the base; `refs/heads/saved` is its branch."""
        return self.accepted(await sandbox.taken(saved.bundle), saved)

    def accepted(self, bundle: bytes, saved: Any) -> Path:
        """Import these bytes of a bundle into a clone that has only the base; `refs/heads/saved` is its branch."""
        clone = self.source.parent / new_name("clone")
        options = ("--quiet", "--bare", "--single-branch", "--branch", BASE)
        git(self.source, "clone", *options, str(self.source), str(clone))
        file = clone / "saved.bundle"
        file.write_bytes(bundle)
        git(clone, "bundle", "verify", "--quiet", str(file))
        git(clone, "fetch", "--quiet", str(file), f"refs/heads/{BRANCH}:refs/heads/saved")
        assert git(clone, "rev-parse", "saved") == saved.commit
        git(clone, "fsck", "--strict")
        return clone
