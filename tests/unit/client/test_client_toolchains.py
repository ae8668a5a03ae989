"""Installation of an agent's SDK: completely or not at all, exactly as locked, and once."""

import os
import stat
from pathlib import Path

import pytest

from sandherd.admin import toolchains
from sandherd.cli.doctor.infrastructure import check_agent_sdks
from sandherd.cli.exit_status import run_command
from sandherd.client.context import Context
from sandherd.client.doctor.check import CheckState
from sandherd.client.errors import HerdError

UV = """#!/bin/sh
echo "$*" >>"$UV_LOG"
[ -z "$UV_FAILS" ] || { echo "first"; echo "no such version" >&2; exit 1; }
[ "$1" = venv ] || exit 0
for last in "$@"; do :; done
mkdir -p "$last/bin" && echo made >"$last/bin/python"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """There is a uv that writes down what it is asked."""
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "UV_LOG": str(tmp_path / "uv.log")}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    lock = tmp_path / "claude.lock"
    lock.write_text("sdk==1 --hash=sha256:00\n")
    return lock


@pytest.mark.parametrize("kind", toolchains.PYTHON_OF_KIND)
def test_every_kind_has_its_lock(kind: str) -> None:
    """The lock has a hash for each package, and no address of an index."""
    text = toolchains.lock_of(kind).read_text()
    assert "==" in text
    assert "--hash=sha256:" in text
    assert "://" not in text
    assert "--index" not in text


def test_kind_without_a_toolchain_has_no_lock() -> None:
    """The error has a remedy."""
    with pytest.raises(HerdError, match="no lock file for command"):
        toolchains.lock_of("command")


def test_installation_follows_the_lock(tmp_path: Path, lock: Path, environ: dict[str, str]) -> None:
    """Hashes are required; another lock means another installation."""
    directory = tmp_path / "toolchains"
    assert not toolchains.is_installed("claude", directory, lock)
    python = toolchains.install("claude", directory, lock, environ)
    assert python == directory / "claude" / "bin" / "python"
    assert python.read_text() == "made\n"
    log = Path(environ["UV_LOG"]).read_text()
    assert "--require-hashes --compile-bytecode" in log
    assert str(lock) in log
    assert toolchains.is_installed("claude", directory, lock)
    lock.write_text("sdk==2 --hash=sha256:00\n")
    assert not toolchains.is_installed("claude", directory, lock)
    assert toolchains.state("claude", directory) == "outdated"
    assert toolchains.state("acp", directory) == "absent"
    toolchains.install("claude", directory, toolchains.lock_of("claude"), environ)
    assert toolchains.state("claude", directory) == "installed"
    assert [path.name for path in directory.iterdir()] == ["claude"]


def test_failed_installation_leaves_the_previous_one(tmp_path: Path, lock: Path, environ: dict[str, str]) -> None:
    """The error has uv's last output, and no partial installation remains."""
    directory = tmp_path / "toolchains"
    python = toolchains.install("claude", directory, lock, environ)
    with pytest.raises(HerdError, match="no such version"):
        toolchains.install("claude", directory, lock, environ | {"UV_FAILS": "1"})
    assert python.exists()
    assert [path.name for path in directory.iterdir()] == ["claude"]


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_installation_has_its_modes_under_any_umask(
    tmp_path: Path, lock: Path, environ: dict[str, str], umask: int
) -> None:
    """Sandboxes read it with their own user ids; others can neither change it nor list a home created for it."""
    before = os.umask(umask)
    try:
        toolchains.install("claude", tmp_path / "home" / "toolchains", lock, environ)
    finally:
        os.umask(before)
    found = {path.relative_to(tmp_path): path for path in (tmp_path / "home", *(tmp_path / "home").rglob("*"))}
    modes = {str(name): stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert modes == {
        "home": 0o700,
        "home/toolchains": 0o755,
        "home/toolchains/claude": 0o755,
        "home/toolchains/claude/bin": 0o755,
        "home/toolchains/claude/bin/python": 0o644,
        "home/toolchains/claude/sandherd-lock.sha256": 0o644,
    }


def test_installation_that_all_may_write_is_reported_and_replaced(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is enough; what another user may have changed is replaced, and the folder around it closed."""
    directory, lock = tmp_path / "toolchains", toolchains.lock_of("claude")
    here = Context(nats_url="", credentials=None, project="default", home=tmp_path)
    python = toolchains.install("claude", directory, lock, environ)
    (python.parent / "link").symlink_to("python")
    assert toolchains.state("claude", directory) == "installed"
    assert check_agent_sdks(here) == []
    python.write_text("changed by another user")
    python.chmod(0o666)
    directory.chmod(0o777)
    assert toolchains.state("claude", directory) == "writable"
    (check,) = check_agent_sdks(here)
    assert (check.state, str(directory / "claude") in check.found) == (CheckState.WRONG, True)
    assert "sandherd harness install claude" in (check.remedy or "")
    for name, value in (*environ.items(), ("SANDHERD_TOOLCHAINS", str(directory))):
        monkeypatch.setenv(name, value)
    assert run_command(["harness", "install", "claude"]) == 0
    assert (toolchains.state("claude", directory), python.read_text()) == ("installed", "made\n")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_modes_of_cached_files_are_not_installed(tmp_path: Path, lock: Path, environ: dict[str, str]) -> None:
    """A tool that links files of its cache does not give the installation the modes that they have there."""
    cached = {name: tmp_path / name for name in ("open", "private", "program")}
    for path, mode in zip(cached.values(), (0o666, 0o600, 0o700), strict=True):
        path.write_text("cached")
        path.chmod(mode)
    uv = tmp_path / "bin" / "uv"
    uv.write_text(uv.read_text() + f'ln {" ".join(map(str, cached.values()))} "$last"\n')
    toolchains.install("claude", tmp_path / "toolchains", lock, environ)
    found = {name: stat.S_IMODE((tmp_path / "toolchains" / "claude" / name).stat().st_mode) for name in cached}
    assert found == {"open": 0o644, "private": 0o644, "program": 0o755}


def test_harness_command_installs_and_lists(
    tmp_path: Path, environ: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toolchain is installed once and listed; an unknown one is refused."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SANDHERD_TOOLCHAINS", str(tmp_path / "toolchains"))
    assert run_command(["harness", "install", "claude"]) == 0
    assert run_command(["harness", "install", "claude"]) == 0
    stdout_text = capsys.readouterr().out
    assert "was installed" in stdout_text
    assert Path(environ["UV_LOG"]).read_text().count("--relocatable") == 1
    assert run_command(["harness", "list"]) == 0
    assert "absent" in capsys.readouterr().out
    assert run_command(["harness", "install", "wizard"]) == 2


def lock_with(tmp_path: Path) -> Path:
    """For OpenHands."""
    lock = tmp_path / "openhands.lock"
    lock.write_text("sdk==1 --hash=sha256:00\n")
    return lock


PYENV = """#!/bin/sh
[ "$PYENV_VERSION" = 3.12 ] || { echo "pyenv: python3.12: command not found" >&2; exit 127; }
echo /versions/3.12/bin/python3.12
"""


def test_interpreter_behind_pyenv_is_found(tmp_path: Path, environ: dict[str, str]) -> None:
    """Pyenv's script on PATH runs only with the version set, which uv does not do."""
    script = tmp_path / "bin" / "python3.12"
    script.write_text(PYENV)
    script.chmod(0o755)
    toolchains.install("openhands", tmp_path / "toolchains", lock_with(tmp_path), environ)
    assert "--python /versions/3.12/bin/python3.12 " in (tmp_path / "uv.log").read_text()


def test_missing_python_is_found_by_uv(tmp_path: Path, environ: dict[str, str]) -> None:
    """Uv gets the version's number."""
    environ["PATH"] = f"{tmp_path / 'bin'}:/bin"
    toolchains.install("openhands", tmp_path / "toolchains", lock_with(tmp_path), environ)
    assert "--python 3.12 " in (tmp_path / "uv.log").read_text()
