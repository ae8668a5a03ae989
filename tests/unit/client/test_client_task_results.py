"""`files`, `diff` and `cp` of what a task has left: an agent has made it, and may be hostile."""

import asyncio
import gzip
import io
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from sandherd.archives import limited_reader
from sandherd.cli import file_copy, folder_diffs, task_results
from sandherd.cli.options import Format
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import FileEntry, FileList, FileRead
from sandherd.contracts.states import TaskState

TASK = "task-01kahc5x3tf8b9n2m4r6v8w0ya"
SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"
Tree = Mapping[str, "str | Path"]
"""Paths with their content, or with the target of a link."""


def packed(tree: Tree, mode: Any = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in tree.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, Path):
                entry.type, entry.linkname = tarfile.SYMTYPE, str(content)
                tar.addfile(entry)
            else:
                entry.size = len(content.encode())
                tar.addfile(entry, io.BytesIO(content.encode()))
    return out.getvalue()


@dataclass
class Stored:
    """A herd that has stored what a task began with, and what it has left."""

    left: bytes
    began: bytes = field(default_factory=lambda: packed({}))
    state: TaskState = TaskState.COMPLETED

    async def task(self, task: str) -> Any:
        return SimpleNamespace(task=task, state=self.state, sandbox=SANDBOX, repository=None)

    async def fetch_result(self, _task: str, out: IO[bytes]) -> None:
        out.write(self.left)
        out.seek(0)

    async def fetch_start(self, _task: str, out: IO[bytes]) -> bool:
        out.write(self.began)
        out.seek(0)
        return True

    async def download(self, _sandbox: str, path: str, out: IO[bytes], *, on_progress: Any) -> FileRead:
        del on_progress
        size = out.write(self.left)
        return FileRead.model_validate({"path": path, "kind": "folder", "size": size, "sha256": "0" * 64})


async def shown(herd: Stored, capsysbinary: pytest.CaptureFixture[bytes]) -> bytes:
    assert await task_results.diff(TASK, Format.TABLE)(herd) == 0  # type: ignore[arg-type]  # has what is stored
    return capsysbinary.readouterr().out


def git(folder: Path, *words: str, patch: bytes = b"", check: bool = True) -> None:
    subprocess.run(["git", *words], cwd=folder, input=patch, check=check, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init")
    return root


HOSTILE: Tree = {
    ".git/config": "[core]\n\tfsmonitor = touch ../ran; false\n",
    ".git/hooks/post-checkout": "#!/bin/sh\ntouch ../ran\n",
    "src/.GIT/config": "[core]\n",
    "src/code.py": "pass\n",
    "other/.git": "gitdir: ../elsewhere\n",
    "link/.git": Path("../elsewhere"),
    "elsewhere/config": "[core]\n",
}


@pytest.mark.parametrize("place", ["an ended task", "a running task", "a sandbox"])
async def test_git_directories_are_left_out_of_copied_folders(
    repository: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Git in the folder here does not run what an agent has named; one line states what was left out."""
    ended = place == "an ended task"
    herd = Stored(packed(HOSTILE, "w:gz" if ended else "w"), state=TaskState.COMPLETED if ended else TaskState.RUNNING)
    if place == "a sandbox":
        work = file_copy.copy(f"{SANDBOX}:.", str(repository), Format.TABLE, recursive=True)
    else:
        of_task = task_results.copy(f"{TASK}:.", str(repository), Format.TABLE, recursive=True)
        assert of_task is not None
        work = of_task
    assert await work(herd) == 0  # type: ignore[arg-type]  # has what is stored
    git(repository, "status")
    assert not (repository.parent / "ran").exists()
    assert "fsmonitor" not in (repository / ".git/config").read_text()
    here = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    assert {path for path in here if not path.startswith(".git/")} == {"src/code.py", "elsewhere/config"}
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(name in err for name in (".git", "src/.GIT", "other/.git", "link/.git", "--with-git"))


BARE: Tree = {
    "lib/HEAD": "ref: refs/heads/main\n",
    "lib/config": "[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = touch ../../ran; false\n",
    "lib/objects/x": "",
    "lib/refs/x": "",
    "head": "a text that is named so\n",
}


@pytest.mark.parametrize("there", [(), ("objects", "refs"), ("HEAD",)])
async def test_copied_bare_repository_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: tuple[str, ...]
) -> None:
    """A folder that is none named `.git`, also one that becomes a repository only with what was there before."""
    target = tmp_path / "new"
    (target / "lib").mkdir(parents=True)
    for name in there:
        (target / "lib" / name).mkdir()
    left = {path: text for path, text in BARE.items() if path.split("/")[1:2] not in [[name] for name in there]}
    work = task_results.copy(f"{TASK}:.", str(target), Format.TABLE, recursive=True)
    assert work is not None
    herd: Any = Stored(packed(left))
    assert await work(herd) == 0
    git(target / "lib", "status", check=False)
    assert not (tmp_path / "ran").exists()
    assert (target / "head").exists()
    assert "lib/" in capsys.readouterr().err


async def test_git_directory_is_copied_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--with-git` copies it; without it a source that is itself named so is refused before anything is connected."""
    herd: Any = Stored(packed(HOSTILE))
    work = task_results.copy(f"{TASK}:.", str(tmp_path / "new"), Format.TABLE, recursive=True, with_git=True)
    assert work is not None
    assert await work(herd) == 0
    assert (tmp_path / "new/.git/config").exists()
    assert capsys.readouterr().err == ""
    for path in (".git", "src/.git", ".git/"):
        with pytest.raises(HerdError, match="programs that it names"):
            task_results.copy(f"{TASK}:{path}", str(tmp_path), Format.TABLE, recursive=True)
        with pytest.raises(HerdError, match="programs that it names"):
            file_copy.copy(f"{SANDBOX}:{path}", str(tmp_path), Format.TABLE, recursive=True)


async def test_git_files_and_links_are_not_in_a_patch(
    repository: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Git refuses the whole of a patch that has one of them."""
    patch = await shown(Stored(packed({**HOSTILE, "text": "new\n"})), capsysbinary)
    git(repository, "apply", patch=patch)
    assert (repository / "text").read_text() == "new\n"
    assert b".git" not in patch.lower()


async def test_ignored_files_are_not_deleted_by_a_patch(
    repository: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A result omits what its own rules ignore: neither is its content shown, nor does `git apply` remove it."""
    stored = {".env": "secret-1", "data/one": "secret-2", "src/x.log": "secret-3", "src/cache": "secret-4"}
    began: Tree = {**stored, "src/code": "old\n", "gone": "gone\n", "data/link": Path("../src"), "to-src": Path("src")}
    left: Tree = {
        ".gitignore": "/.env\ndata/\nto-src\n",
        ".git/info/exclude": "cache\n",
        "src/.gitignore": "*.log\n",
        "src/code": "new\n",
    }
    for name, content in {**stored, "src/code": "old\n", "gone": "gone\n"}.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(content)
    patch = await shown(Stored(packed(left), packed(began)), capsysbinary)
    assert b"secret" not in patch
    assert b"to-src" not in patch.replace(b"+to-src", b"")
    git(repository, "apply", patch=patch)
    assert all((repository / name).read_text() == content for name, content in stored.items())
    assert (repository / "src/code").read_text() == "new\n"
    assert not (repository / "gone").exists()


async def test_names_are_paths(capsys: pytest.CaptureFixture[str]) -> None:
    """`files -o name` prints one path per line."""
    herd: Any = Stored(packed({"a/b": "x", "c": "y"}))
    assert await task_results.files(TASK, Format.NAME)(herd) == 0
    assert capsys.readouterr().out == "a/b\nc\n"
    herd.files = lambda *_, **__: asyncio.sleep(0, FileList(entries=[FileEntry(path="a/b", kind="file")]))
    assert await file_copy.entries(SANDBOX, Format.NAME, recursive=False)(herd) == 0
    assert capsys.readouterr().out == "a/b\n"


async def refused(herd: Any, tmp_path: Path) -> str:
    """The error of copying a hostile result. `files` is refused, too, and nothing is left on the disk."""
    work = task_results.copy(f"{TASK}:.", str(tmp_path / "out"), Format.TABLE, recursive=True)
    assert work is not None
    with pytest.raises(HerdError) as copied:
        await work(herd)
    with pytest.raises(HerdError) as listed:
        await task_results.files(TASK, Format.TABLE)(herd)
    assert list(tmp_path.iterdir()) == []
    assert copied.value.problem.code is listed.value.problem.code is Code.REFUSED
    return str(copied.value)


async def test_entries_without_content_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files use up memory and inodes: each counts as its header."""
    monkeypatch.setattr(task_results, "LARGEST", 100 * 512)
    assert "larger than" in await refused(Stored(packed({str(number): "" for number in range(101)})), tmp_path)


async def test_headers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All headers together have a limit below that of contents: they are kept in memory."""
    monkeypatch.setattr(limited_reader, "LARGEST_HEADERS", 100 * 512)
    herd = Stored(packed({str(number): "" for number in range(101)}))
    assert "too many entries" in await refused(herd, tmp_path)
    large: Any = Stored(packed({"one": "x" * 100_000}))
    assert await task_results.files(TASK, Format.NAME)(large) == 0


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
async def test_long_name_is_not_read_whole(tmp_path: Path, kind: bytes) -> None:
    """A compressed name of any length would be in memory as a whole."""
    entry = tarfile.TarInfo("name")
    entry.type, entry.size = kind, 2 * 1024 * 1024
    archive = gzip.compress(entry.tobuf() + bytes(entry.size))
    assert "header of an entry" in await refused(Stored(archive), tmp_path)


async def test_content_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than the limit is decompressed, and a large file does not count as a large header."""
    herd: Any = Stored(packed({"large": "x" * 5_000_000}))
    assert await task_results.files(TASK, Format.NAME)(herd) == 0
    monkeypatch.setattr(task_results, "LARGEST", 4_000_000)
    assert "larger than" in await refused(herd, tmp_path)


async def test_large_patch_is_not_a_document(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """JSON is refused with what to do; a pipe gets all of it."""
    monkeypatch.setattr(folder_diffs, "LARGEST_DOCUMENT", 1000)
    herd: Any = Stored(packed({"x": "line\n" * 1_000_000}))
    with pytest.raises(HerdError, match="more than 1000 bytes"):
        await task_results.diff(TASK, Format.JSON)(herd)
    assert len(await shown(herd, capsysbinary)) > 5_000_000


async def test_patch_on_a_terminal_has_its_own_lines_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Separators in a file begin no line, and a very long line is cut."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    herd: Any = Stored(packed({"x": f"one\rdiff --git a/y b/y\u2028--- y\n{'x' * 200_000}\nlast\n"}))
    assert await task_results.diff(TASK, Format.TABLE)(herd) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line.startswith(("diff", "---"))] == ["diff --git a/x b/x", "--- /dev/null"]
    forged, long, last = lines[-4:-1]
    assert forged.startswith("+one␍diff")
    assert long.endswith("x…")
    assert last == "+last"


@pytest.mark.parametrize("name", ["fix-it", "task-01kahc5x3tf8b9n2m4r6v8w0ya", "nightly-20261126t030000z"])
def test_task_of_any_name_is_copied_from(name: str) -> None:
    """A valid name before a colon names a task, as it names a host in scp; it is not part of a local path."""
    assert file_copy.sandbox_path(f"{name}:a/b") == file_copy.SandboxPath(name, "a/b")
    assert task_results.copy(f"{name}:a/b", "here", Format.TABLE, recursive=False) is not None


@pytest.mark.parametrize("path", ["a", "./a:b", "/tmp/a:b", "Ä:b", "A b:c"])
def test_other_paths_are_local(path: str) -> None:
    """A path with a colon is written with its folder."""
    assert file_copy.sandbox_path(path) is None
    assert task_results.copy(path, "here", Format.TABLE, recursive=False) is None
