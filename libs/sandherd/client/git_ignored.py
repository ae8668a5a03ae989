"""Finds the files that git ignores in a local folder, by the rules of its repository and of the user.

It reads each `.gitignore` from the repository's root down to the folder and below, the repository's `info/exclude`, and
the file of `core.excludesFile`. Git is run only to read this setting, and may be missing.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from sandherd.archives.gitignore import GitignoreRules
from sandherd.archives.ignore import GIT, IgnoreRules, content, ignored_in
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code


def ignored_by_git(folder: Path) -> Callable[[str, bool], bool]:
    """The parameter `skips` of `writer.pack` for this folder: skips ignored files, and `.git`. Raises `HerdError`.

    If no repository contains the folder, only the `.gitignore` files in it and the user's rules apply.
    """
    real = Path(os.path.realpath(folder))
    root = next((directory for directory in (real, *real.parents) if os.path.lexists(directory / GIT)), real)
    rules = IgnoreRules(confined=False, user=_user_rules(root))
    folder_in_root = "" if root == real else real.relative_to(root).as_posix()
    return ignored_in(root, with_git=False, folder=folder_in_root, rules=rules)


def _user_rules(root: Path) -> GitignoreRules:
    configured = _excludes_file(root)
    if configured is None:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        configured = os.path.join(base, "git", "ignore")  # noqa: PTH118  # `Path.expanduser` fails without a home
    if not configured:
        return GitignoreRules()
    expanded = os.path.expanduser(configured)  # noqa: PTH111  # `Path.expanduser` fails without a home
    return GitignoreRules(content(Path(os.path.realpath(root / expanded))))


def _excludes_file(root: Path) -> str | None:
    """The user's `core.excludesFile`; None if it is not set, or git is not installed."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "config", "--type=path", "--get", "core.excludesFile"]
    result = subprocess.run(command, cwd=root, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode > 1:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"git can't read its configuration: {os.fsdecode(result.stderr).strip()}",
            field="dir",
            remedy="correct git's configuration, which is read to skip the files that git ignores",
        )
    return os.fsdecode(result.stdout).removesuffix("\n") if result.returncode == 0 else None
