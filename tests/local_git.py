"""Real git repositories in a temporary folder, and bundles that a sandbox could have made."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_AUTHOR = {
    name: value
    for who in ("AUTHOR", "COMMITTER")
    for name, value in ((f"GIT_{who}_NAME", "A"), (f"GIT_{who}_EMAIL", "a@example.org"))
}
BRANCH = "feature/fix-it"
REF = f"refs/heads/{BRANCH}"


@dataclass(frozen=True)
class Git:
    """git(1) in one folder."""

    folder: Path

    def __call__(self, *words: str, stdin: bytes = b"", check: bool = True) -> str:
        """Run git; returns its output without the final line break."""
        env = {**os.environ, **_AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *words],
            cwd=self.folder, env=env, input=stdin, capture_output=True, check=check,
        )  # fmt: skip
        return os.fsdecode(done.stdout).removesuffix("\n")

    def commit(self, name: str = "file", content: str = "one\n", *, message: str = "a change") -> str:
        """Commit a file; returns the commit."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self("add", "--", name)
        self("commit", "--quiet", "-m", message)
        return self("rev-parse", "HEAD")

    def object(self, kind: str, data: bytes) -> str:
        """Store an object as it is, also a malformed one; returns its id."""
        return self("hash-object", "-t", kind, "-w", "--literally", "--stdin", stdin=data)

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Create a tree of entries (mode, name and object id) in this order; git would refuse to write some of them."""
        raw = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(found) for mode, name, found in entries)
        return self.object("tree", raw)

    def commit_tree(self, tree: str, parent: str) -> str:
        """Create a commit of any tree."""
        return self("commit-tree", tree, "-p", parent, "-m", "a change")

    def bundle(self, file: Path, *revisions: str) -> Path:
        """Create a bundle of these revisions."""
        self("bundle", "create", "--quiet", str(file), *revisions)
        return file


def new_repository(folder: Path, *options: str) -> Git:
    """Create an empty repository with the branch `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    git = Git(folder)
    git("init", "--quiet", "--initial-branch=main", *options)
    return git


def clone(source: Path, target: Path, *options: str) -> Git:
    """Clone a repository by git's own transport."""
    Git(source.parent)("clone", "--quiet", *options, source.as_uri(), str(target))
    return Git(target)
