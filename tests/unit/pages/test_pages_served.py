"""How the gateway serves the built pages, and what they weigh."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from gateway.pages import STATIC, StaticPages, is_page
from gateway.request_guard import RequestGuard

SOURCES = Path(__file__).parents[3] / "services" / "gateway" / "pages"
FIRST_LOAD = 150_000
"""Maximum of bytes, compressed, that the first page needs."""


def response(path: str, method: str = "GET", folder: Path = STATIC, encodings: str = "") -> Any:
    return StaticPages(folder).response(method, path, Headers({"accept-encoding": encodings}))


def test_pages_are_served_to_everyone_and_the_api_to_no_one() -> None:
    """Whatever is no file and not the API's is a page's address; an asset that is not there is no page."""
    assert [is_page(path) for path in ("/", "/sandboxes/sbx-1", "/api", "/api/v1/tasks", "/healthz")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert b'<div id="app">' in response("/sandboxes/sbx-1/replay").body
    assert response("/").headers["cache-control"] == "no-cache"
    assert [response(path).status_code for path in ("/assets/absent.js", "/assets/../pages.py")] == [404, 404]
    assert b"pages.py" not in response("/../pages.py").body
    assert (response("/", "POST").status_code, response("/", "POST").headers["allow"]) == (405, "GET, HEAD")


def test_page_that_is_not_built_names_the_fix(tmp_path: Path) -> None:
    """A checkout without built pages serves the API, and the page says what is missing."""
    found = response("/", folder=tmp_path / "absent")
    assert (found.status_code, json.loads(found.body)["remedy"]) == (
        404, "run `make install`, then restart the gateway",
    )  # fmt: skip


def test_assets_are_compressed_once_and_cached_for_ever() -> None:
    """Each asset has a compressed copy with the same content, which a browser that knows gzip gets."""
    asset = next(path for path in (STATIC / "assets").glob("index-*.js"))
    plain, packed = (response(f"/assets/{asset.name}", encodings=it) for it in ("identity", "gzip, br"))
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body == asset.read_bytes()
    assert "immutable" in packed.headers["cache-control"]
    assert packed.headers["content-type"].startswith("text/javascript")


async def test_page_has_a_strict_policy_and_needs_no_token() -> None:
    """A page without a token: no script, style, image or connection from elsewhere, and no frame around it."""

    async def send(message: Any) -> None:
        sent.append(message)

    async def unused(*_: Any) -> Any:
        raise AssertionError("a page is no request to the API")

    sent: list[Any] = []
    guard = RequestGuard(unused, unused, hosts=frozenset(), per_second=9, on_response=lambda *_: None)  # type: ignore[arg-type]  # parts that are not used here
    await guard({"type": "http", "method": "GET", "path": "/new", "headers": [(b"host", b"localhost")]}, unused, send)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    assert sent[0]["status"] == 200
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"


def test_first_load_is_small() -> None:
    """What the first page loads, compressed: the document, and what it and the herd's page name."""
    entry = (STATIC / "index.html").read_text()
    names = {path.name for path in (STATIC / "assets").glob("*") if path.name in entry}
    names |= {path.name for path in (STATIC / "assets").glob("*") if path.name.startswith("HerdPage-")}
    pending, size = {name.removesuffix(".gz") for name in names}, len(gzip.compress(entry.encode()))
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        seen.add(name)
        content = (STATIC / "assets" / name).read_bytes()
        size += len(gzip.compress(content))
        static = [line for line in content.decode().split(";") if line.lstrip().startswith("import")][:40]
        found = {path.name for path in (STATIC / "assets").glob("*.js") if any(path.name in line for line in static)}
        pending |= found - seen
    assert any(name.startswith("HerdPage-") for name in seen)
    assert size < FIRST_LOAD


def test_sources_contain_no_html_of_others_and_no_inline_style() -> None:
    """`{@html}` would execute what an agent wrote; a style attribute is refused by the policy."""
    for path in (SOURCES / "src").rglob("*.svelte"):
        text = path.read_text()
        assert "{@html" not in text, path
        assert ' style="' not in text, path
    lock = (SOURCES / "package-lock.json").read_text()
    assert '"resolved"' not in lock, "the lock names a registry: run npm with the .npmrc of the folder"


@pytest.mark.timeout(1200)
def test_units_of_the_pages() -> None:
    """The tests of the stores and folds, beside their sources, and the types of all components."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is not on PATH: the units of the pages can't be tested", pytrace=False)
    # A process for each file of tests would take three times as much CPU time, most of it to load Svelte.
    for job in (("test", "--", "--no-isolate", "--maxWorkers=1"), ("check",)):
        done = subprocess.run(
            [npm, "run", *job],
            cwd=SOURCES,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=550,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
