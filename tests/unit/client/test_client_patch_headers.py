"""Headers of a patch."""

import io
import subprocess
from pathlib import Path

import pytest

from sandherd.cli.folder_diffs import write
from sandherd.cli.patch_headers import header_of


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (b"diff --git b/x y b/x y\n", b"diff --git a/x y b/x y\n"),
        (b"diff --git a/x a/x\n", b"diff --git a/x b/x\n"),
        (b"diff --git a/x b/x\n", b"diff --git a/x b/x\n"),
        (b'diff --git "b/\\t" "b/\\t"\n', b'diff --git "a/\\t" "b/\\t"\n'),
    ],
)
def test_header_names_both_folders(line: bytes, header: bytes) -> None:
    """It does so for names with spaces and for quoted names, too."""
    assert header_of(line) == header


def test_patch_of_new_and_deleted_files_is_applied_by_git(tmp_path: Path) -> None:
    """Its headers are those of a repository, and it makes of the one folder the other."""
    for folder, name in (("a", "old"), ("b", "new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("x\n")
    patch = io.BytesIO()
    with (tmp_path / "patch").open("w+b") as file:
        write(tmp_path, file)
        patch.write(file.read())
    headers = [line for line in patch.getvalue().splitlines() if line.startswith(b"diff")]
    assert sorted(headers) == [b"diff --git a/new b/new", b"diff --git a/old b/old"]
    subprocess.run(["git", "apply", "../patch"], cwd=tmp_path / "a", check=True)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]
