"""Packages that are installed from wheels contain everything that an image needs, and no link."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
PROJECTS = ("libs", *sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("services/*/pyproject.toml")))
pytestmark = pytest.mark.timeout(900)


def uv(*words: str | Path) -> None:
    """Run uv without a network, and with the packages that are installed here."""
    done = subprocess.run(
        [UV, *words, "--offline", "-q", "--python", sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all packages, each built first as a source archive, and installed from its wheel."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("elsewhere")
    for project in PROJECTS:
        uv("build", "--no-build-isolation", "-o", built, project)
    wheels = sorted(built.glob("*.whl"))
    assert len(wheels) == len(list(built.glob("*.tar.gz"))) == len(PROJECTS)
    uv("pip", "install", "--no-deps", "--target", folder, *wheels)
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    return folder


def run(code: str, packages: Path, *words: str) -> str:
    """Run a program that finds the packages there before any that are installed in place."""
    env = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"], "HOME": str(packages)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_image_folder_is_written_by_installed_packages(elsewhere: Path, tmp_path: Path) -> None:
    """The folder's Dockerfile is that of `deploy`, and the worker in it can be loaded."""
    code = "import sys; from sandherd.cli import main; sys.exit(main())"
    run(code, elsewhere, "image", "context", str(tmp_path / "made"))
    dockerfile = (tmp_path / "made" / "Dockerfile").read_text()
    assert dockerfile == (ROOT / "deploy/images/sandbox/Dockerfile").read_text()
    lib = tmp_path / "made/opt/sandherd/lib"
    loaded = run("import sandherd_worker.main, sandherd_worker.worker_lifecycle as life; print(life.__file__)", lib)
    assert Path(loaded).is_relative_to(lib)
    for package in ("sandherd_worker", "sandherd_drivers", "sandherd"):
        ours = {path.relative_to(elsewhere) for path in (elsewhere / package).rglob("*.py")}
        assert {path for path in ours if not (lib / path).is_file()} == set()


def test_data_files_are_in_the_packages(elsewhere: Path) -> None:
    """The lock files of toolchains, the migrations and the script of a runtime are installed."""
    code = (
        "from sandherd.admin.toolchains import PYTHON_OF_KIND, lock_of; "
        "print(*[lock_of(kind) for kind in PYTHON_OF_KIND], sep='\\n')"
    )
    locks = run(code, elsewhere).splitlines()
    assert locks
    assert all(Path(lock).is_relative_to(elsewhere) and Path(lock).is_file() for lock in locks)
    for folder, kind in (("event_ingest", "*.sql"), ("spawner", "*.sh")):
        (source,) = ROOT.glob(f"services/*/{folder}")
        there = {path.relative_to(source) for path in source.rglob(kind)}
        assert there
        assert {path.relative_to(elsewhere / folder) for path in (elsewhere / folder).rglob(kind)} == there
