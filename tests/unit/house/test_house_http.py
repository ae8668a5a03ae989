"""Every HTTP server of a service is the one with limits."""

from pathlib import Path
from typing import Any

from tests.unit.house.conftest import ROOT

WINDOW = "libs/sandherd/service/http_server.py"
RUN = "libs/sandherd/service/uvicorn_server.py"
API = "services/gateway/gateway/api_server.py"
PROXY = "services/spawner/spawner/git_proxy/server.py"
SERVERS = {"uvicorn", "hypercorn", "granian", "gunicorn"}
USE_NO_SERVER = {f"libs/sandherd/service/{name}.py" for name in ("http_connections", "library_imports")}
"""Modules that import uvicorn and start no server."""
SERVICES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "services").glob("*/*/main.py")
    if path.parent.name != "sandherd_worker"
)


def test_three_modules_start_http_servers(product: list[Any]) -> None:
    """Each service's own, the API's, and the git proxy's: another server would have no limits of its connections."""
    users = {source.name for source in product if source.imports & SERVERS}
    assert users == {WINDOW, API, RUN, PROXY, *USE_NO_SERVER}
    assert "http=partial(BoundedConnection, " in Path(ROOT / WINDOW).read_text(encoding="utf-8")
    assert "http=partial(BoundedConnection, " in Path(ROOT / PROXY).read_text(encoding="utf-8")
    api = Path(ROOT / API).read_text(encoding="utf-8")
    assert "http=partial(ApiConnection, " in api
    assert "class ApiConnection(BoundedConnection):" in api


def test_every_service_is_run_by_it(product: list[Any]) -> None:
    """Each service's program is `sandherd.service.service.serve`, which raises the open files and opens that server."""
    assert len(SERVICES) >= 5
    for source in product:
        if source.name in SERVICES:
            assert "from sandherd.service.service import" in source.text, source.name
            assert "    serve(Principal." in source.text, source.name
