"""The installation of npm's packages for tests."""

import shutil
from pathlib import Path

import pytest

from tests.npm_packages import _install


def test_failed_installation_shows_what_npm_reports(tmp_path: Path) -> None:
    """Such as a lock that does not fit, or no network."""
    npm = shutil.which("npm")
    assert npm is not None
    source, folder = tmp_path / "source", tmp_path / "folder"
    for one in (source, folder):
        one.mkdir()
    (source / "package.json").write_text('{"name": "a", "version": "1.0.0", "dependencies": {"b": "1.0.0"}}')
    (source / "package-lock.json").write_text('{"name": "a", "version": "1.0.0", "lockfileVersion": 3, "packages": {}}')
    with pytest.raises(pytest.fail.Exception, match=r"(?s)npm ci for source: status 1: .*npm"):
        _install(npm, source, folder)
