"""Wheels of plugins, built and installed without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

UV = Path(sys.executable).with_name("uv")


def uv(*words: str | Path) -> None:
    """Run uv without a network, and with the packages that are installed here."""
    command = [UV, *words, "--offline", "-q", "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


def wheel(source: Path, folder: Path) -> None:
    """Build the wheel from a copy of this project, so that the build leaves nothing in the sources."""
    copied = folder / "sources" / source.name
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    uv("build", "--wheel", "--no-build-isolation", "-o", folder / "wheels", copied)
