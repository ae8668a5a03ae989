"""A browser's session on real parts: a token or a code begins it, either ends it, and other sites can't use it."""

import asyncio
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest

from gateway import event_stream
from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import PROJECT, Api, Messages, herd_context
from tests.integration.operating.herds import sandherd
from tests.patience import PATIENCE
from tests.polling import eventually

SESSION: Final = "/api/v1/session"
TASK: Final = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}}
OWN: Final = {"Sec-Fetch-Site": "same-origin"}


class Browser:
    """A browser that has the session's cookie; its requests are those of the gateway's own pages."""

    def __init__(self, api: Api, cookie: str = "") -> None:
        self.api = api
        self.cookie = cookie

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        """Send a request; returns the status, the document and the headers of the response."""
        headers = {**OWN, "Cookie": self.cookie, **options.pop("headers", {})}
        async with self.api.session.request(method, self.api.url + path, headers=headers, **options) as response:
            text = await response.text()
            document = await response.json(content_type=None) if text else None
            if "Set-Cookie" in response.headers:
                self.cookie = response.headers["Set-Cookie"].partition(";")[0]
            return response.status, document, response.headers


async def test_session_of_a_token_lives_with_it(api: Api, client: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookie permits what the token permits; the token's end also ends sessions and their open streams."""
    monkeypatch.setattr(event_stream.EventStreams.__init__, "__defaults__", (0.05, event_stream.STALL))
    text = (await client.create_token("ci", "work")).text
    browser = Browser(api)
    status, view, headers = await browser.call("POST", SESSION, json={"token": text})
    assert (status, view["project"], view["name"], view["role"]) == (200, "p1", "token:ci", "work")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert text not in str(headers)
    assert (await browser.call("GET", SESSION))[1] == view
    first = Browser(api, browser.cookie)
    status, _, headers = await browser.call("POST", "/api/v1/tasks", json=TASK)
    assert status == 202
    assert (await eventually(lambda: _submitted(api, headers["Location"]), "the task is listed")) == "token:ci"
    for foreign in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        for method, path in (("POST", "/api/v1/tasks"), ("DELETE", SESSION), ("GET", "/api/v1/events/stream")):
            status, body, _ = await browser.call(method, path, headers=foreign, json=TASK)
            assert (status, body["field"]) == (403, "Sec-Fetch-Site")
        assert (await browser.call("POST", SESSION, json={"token": text}, headers=foreign))[0] == 403
    assert (await browser.call("POST", SESSION, json={"token": text}))[0] == 200
    assert (await first.call("GET", SESSION))[0] == 401, "the session that the browser had has ended"
    names = {one.name: one.kind for one in (await client.tokens()).tokens}
    assert sorted(names.values()) == ["session", "token", "token"]
    async with asyncio.timeout(PATIENCE):
        url, cookie = f"{api.url}/api/v1/events/stream", {**OWN, "Cookie": browser.cookie}
        async with api.session.get(url, headers=cookie) as response:
            stream = Messages(response)
            assert (await stream.next())[0] == "ready"
            await client.revoke_token("ci")
            with pytest.raises(EOFError):
                await _all(stream)
    assert (await browser.call("GET", SESSION))[0] == 401
    assert [one.name for one in (await client.tokens()).tokens] == ["all"]


async def test_link_of_open_gives_one_session_once(api: Api, herd: Broker) -> None:
    """The code is in the URL's fragment; of many uses of it at the same time only one gets a session."""
    credentials = {"SANDHERD_CREDENTIALS": str(herd_context(herd).credentials), "SANDHERD_PROJECT": PROJECT}
    words = ("open", "--role", "read", "--url", f"{api.url}/api/v1", "--print")
    done = await asyncio.to_thread(partial(sandherd, herd, *words, **credentials))
    link = urlsplit(done.stdout.strip())
    assert (f"{link.scheme}://{link.netloc}{link.path}", link.query) == (f"{api.url}/sign-in", ""), done.stderr
    found = dict(parse_qsl(link.fragment))
    assert found["next"] == "/"
    code = found["code"]
    for wrong in ({"code": code[:-1] + "!"}, {"token": code}, {"code": code, "token": code}, {}):
        assert (await Browser(api).call("POST", SESSION, json=wrong))[0] in {401, 422}
    browsers = [Browser(api) for _ in range(5)]
    got = await asyncio.gather(*(one.call("POST", SESSION, json={"code": code}) for one in browsers))
    assert sum(status == 200 for status, _, _ in got) == 1
    assert {status for status, _, _ in got} <= {200, 401, 403}
    browser = next(one for one in browsers if one.cookie)
    status, view, _ = await browser.call("GET", SESSION)
    assert (status, view["name"].partition("/")[0], view["role"]) == (200, "client-p1", "read")
    assert (await browser.call("POST", "/api/v1/tasks", json=TASK))[0] == 403
    stolen = browser.cookie.partition("=")[2]
    assert (await Api(api.url, api.session, stolen).call("GET", SESSION))[0] == 401
    assert (await api.call("DELETE", SESSION))[0] == 409
    stored = Browser(api, browser.cookie)
    status, _, headers = await browser.call("DELETE", SESSION)
    assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (204, True)
    assert (await stored.call("GET", SESSION))[0] == 401
    assert (await Browser(api).call("POST", SESSION, json={"code": code}))[0] == 401


async def _all(stream: Messages) -> None:
    while True:
        await stream.next()


async def _submitted(api: Api, location: str) -> str | None:
    task = location.rpartition("/")[2]
    found = (await api.call("GET", f"/api/v1/events?entity={task}&types=task.submitted"))[1]["events"]
    return found[0]["envelope"]["data"]["submitted_by"] if found else None
