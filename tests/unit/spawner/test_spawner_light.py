"""What a spawner holds in memory of the clients of those who make its sandboxes."""

import subprocess
import sys

_LIGHT = """
import sys
from spawner.runtimes.kubernetes.opening import open_kubernetes
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


def test_of_the_client_for_kubernetes_only_what_is_used_is_loaded() -> None:
    """None of its thousand modules of models and calls; who asks for one finds it all the same."""
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT + _WHOLE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
