"""A bare repository of a forge, changed by real git."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HOOK: Final = Path(__file__).with_name("update_hook.sh")
_PERSON: Final = ("Ada", "ada@example.com")


class GitError(Exception):
    """Git has failed; the text is git's own."""

    def __init__(self, text: str, stdout: str) -> None:
        super().__init__(text)
        self.stdout = stdout


@dataclass(frozen=True)
class Commit:
    """A commit."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str
    author: tuple[str, str]
    date: str


class BareRepository:
    """A repository at a path that ends with `.git`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, branch: str = "main") -> "BareRepository":
        """Create an empty repository, which accepts pushes and calls our hook."""
        path.mkdir(parents=True)
        made = cls(path)
        made.run("init", "--quiet", "--bare", f"--initial-branch={branch}", ".")
        for name, value in (("http.receivepack", "true"), ("gc.auto", "0"), ("core.hooksPath", "hooks")):
            made.run("config", name, value)
        hook = path / "hooks" / "update"
        hook.write_bytes(_HOOK.read_bytes())
        hook.chmod(0o755)
        made.protect({})
        return made

    def protect(self, refused: Mapping[str, str]) -> None:
        """Refuse pushes to refs that match a pattern (of a shell's `case`), with the text of the pattern."""
        lines = [f"{pattern}\t{text}\n" for pattern, text in refused.items()]
        (self.path / "protected-refs").write_text("".join(lines))

    def run(self, *words: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run git; returns its output. Raises `GitError`."""
        name, email = _PERSON
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
               (("NAME", name), ("EMAIL", email))}  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **who,
            **(env or {}),
        }
        done = subprocess.run(
            ["git", *words], cwd=self.path, env=environment, input=stdin, capture_output=True, check=False
        )
        if done.returncode:
            raise GitError(done.stderr.decode(errors="replace"), done.stdout.decode(errors="replace"))
        return done.stdout.decode(errors="replace").removesuffix("\n")

    def head(self, branch: str) -> str | None:
        """The commit at the head of a branch."""
        return self.branches().get(branch)

    def branches(self) -> dict[str, str]:
        """All branches, with their commits."""
        return {name.removeprefix("refs/heads/"): sha for name, sha in self.refs("refs/heads/").items()}

    def refs(self, prefix: str = "refs/") -> dict[str, str]:
        """The refs whose full names begin with this prefix."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        every = dict(line.rsplit(" ", 1) for line in lines)
        return {name: sha for name, sha in every.items() if name.startswith(prefix)}

    def is_commit(self, sha: str) -> bool:
        """Whether the repository has this commit."""
        try:
            return self.run("cat-file", "-t", sha) == "commit"
        except GitError:
            return False

    def show(self, sha: str) -> Commit:
        """A commit. Raises `GitError`."""
        shown = self.run("show", "--no-patch", "--format=%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%B", sha, "--")
        full, tree, parents, name, email, date, message = shown.split("\0", 6)
        return Commit(full, tree, tuple(parents.split()), message.strip("\n"), (name, email), date)

    def contains(self, later: str, earlier: str) -> bool:
        """Whether one commit is an ancestor of the other, or the same commit."""
        try:
            self.run("merge-base", "--is-ancestor", earlier, later)
        except GitError:
            return False
        return True

    def between(self, base: str, head: str) -> list[str]:
        """The commits that `head` has and `base` does not have, oldest first."""
        return self.run("rev-list", "--reverse", f"{base}..{head}", "--").splitlines()

    def changes(self, base: str, head: str) -> list[tuple[int, int, str]]:
        """The number of added and removed lines of each file since the merge base."""
        lines = self.run("diff", "--numstat", "--no-renames", f"{base}...{head}", "--").splitlines()
        numbers = [line.split("\t", 2) for line in lines]
        return [(int(a) if a != "-" else 0, int(b) if b != "-" else 0, name) for a, b, name in numbers]

    def commit(
        self, branch: str, files: Mapping[str, str | bytes | None], message: str = "change", base: str | None = None
    ) -> str:
        """Commit files on a branch, as another user's push would; `None` deletes a file. Returns the commit."""
        parent = self.head(branch) or (self.head(base) if base else None)
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            if parent:
                self.run("read-tree", parent, env=index)
            for name, text in files.items():
                self._stage(name, text, index)
            tree = self.run("write-tree", env=index)
        made = self.write(tree, [parent] if parent else [], message)
        self.move(branch, made, self.head(branch))
        return made

    def _stage(self, name: str, content: str | bytes | None, index: Mapping[str, str]) -> None:
        if content is None:
            self.run("rm", "--quiet", "--cached", "--", name, env=index)
            return
        raw = content.encode() if isinstance(content, str) else content
        blob = self.run("hash-object", "-w", "--stdin", stdin=raw)
        self.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", env=index)

    def write(self, tree: str, parents: list[str], message: str) -> str:
        """Create a commit of a tree that is on no branch."""
        ancestry = [word for parent in parents for word in ("-p", parent)]
        return self.run("commit-tree", tree, *ancestry, "-F", "-", stdin=message.encode())

    def move(self, branch: str, new: str, old: str | None) -> None:
        """Move a branch by compare-and-set, or create it. Raises `GitError`."""
        self.run("update-ref", f"refs/heads/{branch}", new, old or "0" * 40)

    def delete(self, ref: str) -> None:
        """Delete a ref by its full name."""
        self.run("update-ref", "-d", ref)
