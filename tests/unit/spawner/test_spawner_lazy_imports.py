"""Clients of providers are loaded only where they are used."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_LIGHT = """
import sys
from spawner.runtimes.kubernetes.factory import open_kubernetes
loaded = {name for name in sys.modules if name.startswith("kubernetes_asyncio.")}
assert {name for name in loaded if ".models." in name or ".api." in name} == set(), loaded
"""
_WHOLE = """
from kubernetes_asyncio import client, watch
assert client.V1Pod is client.models.V1Pod
assert issubclass(client.CoreV1Api, object) and watch.Watch
from spawner.runtimes.kubernetes.cluster import ApiClient
assert client.ApiClient is ApiClient
"""


def test_kubernetes_client_is_loaded_lazily() -> None:
    """The client's thousand modules of models and calls are not loaded at the start, but can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT + _WHOLE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


_FORGES = """
import sys
from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.locations import GITHUB, ForgeRepository, forge_of
from spawner.forges.pull_request_text import body_of
heavy = {"aiohttp", "gidgethub", "jwt", "cryptography", "uritemplate"}
assert heavy & sys.modules.keys() == set(), heavy & sys.modules.keys()
forges = Forges()
forges.add_sources(GITHUB, [StoredTokens(lambda: "ghp_x")])
forges.of(ForgeRepository(GITHUB, "team", "shop"))
assert "gidgethub" in sys.modules
from spawner.forges.github_app import PERMISSIONS, GithubApp
forges.add_sources(GITHUB, [forges.app_tokens(GITHUB, GithubApp("1", "key.pem", PERMISSIONS))])
assert {"jwt", "cryptography"} & sys.modules.keys() == set()
"""


def test_client_of_a_forge_is_loaded_with_its_first_use() -> None:
    """The entrance, URLs and texts need none of its libraries; only a signature of an App needs cryptography."""
    done = subprocess.run([sys.executable, "-c", _FORGES], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


_PROGRAMS = """
import sys
sys.path[:0] = [{network!r}, {runtimes!r}]
import sandherd_network.forwarder, launcher
heavy = {{"typing", "dataclasses", "pathlib", "inspect", "asyncio"}}
assert heavy & sys.modules.keys() == set(), heavy & sys.modules.keys()
"""


def test_programs_that_every_sandbox_starts_with_load_few_modules() -> None:
    """The network forwarder and the launcher, as they are started: a sandbox waits for both."""
    network, runtimes = (Path(str(find_spec(name).origin)).parent for name in ("sandherd_network", "spawner.runtimes"))  # type: ignore[union-attr]  # our own
    code = _PROGRAMS.format(network=str(network.parent), runtimes=str(runtimes))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
