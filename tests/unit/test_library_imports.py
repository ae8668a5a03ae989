"""Services load their libraries without modules that no service uses."""

import json
import subprocess
import sys

import pytest

UNUSED = ["aiohttp", "click", "http.server", "unittest", "unittest.mock", "urllib.request", "uvicorn.main", "wsgiref"]
SERVICES = ("event_ingest", "gateway", "message_relay", "monitor", "spawner")


def output_of(program: str) -> str:
    """What a new Python process with this program prints."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("service", SERVICES)
def test_service_loads_no_unused_modules(service: str) -> None:
    """They would take 3 MiB in each process, and 9 MiB in the gateway."""
    listed = f"import {service}.main, json, sys; print(json.dumps([name for name in {UNUSED} if name in sys.modules]))"
    assert json.loads(output_of(listed)) == []


LATER = """
import sandherd.service
import http.server, unittest.mock, urllib.request, wsgiref.simple_server
import uvicorn, uvicorn.server
print(isinstance(unittest.mock.MagicMock(), unittest.mock.NonCallableMock), urllib.request.Request("http://x/").host)
print(http.server.BaseHTTPRequestHandler.__module__, wsgiref.simple_server.WSGIServer.__module__)
print(uvicorn.Server is uvicorn.server.Server)
from faststream._internal.testing.calls import CallRecorder
import faststream._internal.testing.calls as calls
print(isinstance(calls.MagicMock(), unittest.mock.MagicMock))
import uvicorn.main
print(uvicorn.main.Server is uvicorn.Server, uvicorn.main.main.name)
"""


def test_modules_are_loaded_by_later_imports() -> None:
    """A library that imports one of them afterwards gets the real module, and FastStream creates real mocks."""
    lines = output_of(LATER).splitlines()
    assert lines == ["True x", "http.server wsgiref.simple_server", "True", "True", "True main"]


def test_replaced_servers_refuse_to_start() -> None:
    """A replaced class fails with its name, and not later with a missing attribute."""
    program = """
import sandherd.service
from prometheus_client import start_http_server
try:
    start_http_server(0, addr="127.0.0.1")
except TypeError as error:
    print(error)
"""
    assert output_of(program).strip().endswith("is not available in a service")


def test_name_that_a_replacement_lacks_is_loaded() -> None:
    """A library of another version may import further names."""
    program = """
from sandherd.hidden_modules import replaced
from sandherd.service import library_imports as loading
del loading._REPLACED["unittest.mock"]["MagicMock"]
import sys
for name in [each for each in sys.modules if each.startswith(("faststream", "unittest"))]:
    del sys.modules[name]
loading.load_libraries()
import faststream._internal.testing.calls as calls
print(calls.MagicMock.__module__, "unittest.mock" in sys.modules)
"""
    assert output_of(program).split() == ["unittest.mock", "False"]
