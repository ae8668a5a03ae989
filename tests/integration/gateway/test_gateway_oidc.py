"""Sign-in by an OpenID provider, on a real gateway and spawner, and the attacks on it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest

from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.doubles.oidc_provider import CLIENT, SECRET, OidcProvider
from tests.integration.gateway.conftest import Api, responds, served
from tests.integration.operating.herds import running
from tests.polling import eventually

BEGIN = "/api/v1/sign-in/oidc"


class Visitor:
    """A browser without scripts: it stores cookies, and follows redirects one by one."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.cookies: dict[str, str] = {}
        self._http = http
        self._url = url

    async def visit(self, url: str) -> tuple[int, str]:
        """Send a request; returns the status and the redirect's target, without the gateway's own address."""
        own = url.startswith("/")
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if own else {}
        headers = {"Sec-Fetch-Site": "cross-site", **cookie}
        async with self._http.get((self._url if own else "") + url, headers=headers, allow_redirects=False) as response:
            for line in response.headers.getall("Set-Cookie", []):
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value
            return response.status, response.headers.get("Location", "").removeprefix(self._url)

    async def begun(self, query: str = "") -> str:
        """Begin a sign-in, and return the provider's response to it."""
        status, there = await self.visit(BEGIN + query)
        assert status == 303
        return (await self.visit(there))[1]

    async def signed_in(self, query: str = "") -> str:
        """Complete a sign-in; returns the redirect's target."""
        return (await self.visit(await self.begun(query)))[1]

    async def session(self, api: Api) -> Any:
        """The session, or None."""
        headers = {"Cookie": f"__Host-sandherd={self.cookies.get('__Host-sandherd', '')}"}
        async with self._http.get(f"{api.url}/api/v1/session", headers=headers) as response:
            return await response.json() if response.status == 200 else None


@pytest.fixture
async def provider() -> AsyncIterator[OidcProvider]:
    async with OidcProvider().running() as found:
        yield found


@pytest.fixture
async def oidc_api(
    herd: Broker, postgres: str, tmp_path: Path, provider: OidcProvider, client: Herd, http: aiohttp.ClientSession
) -> AsyncIterator[Api]:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    settings: dict[str, Any] = {
        "gateway_port_file": tmp_path / "api.port",
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT,
        "oidc_client_secret_file": secret,
        "oidc_grants": ["engineers=p1:work", "leads=p1:operate", "leads=p2:read"],
    }
    async with running(herd, postgres, tmp_path / "home", isolation="none", **settings):
        await eventually(lambda: responds(client), "the spawner responds")
        yield Api(await served(tmp_path / "api.port"), http, "")


def shown(location: str) -> dict[str, str]:
    """The contents of the sign-in page."""
    parts = urlsplit(location)
    assert (parts.netloc, parts.path, parts.query) == ("", "/sign-in", "")
    return dict(parse_qsl(parts.fragment))


async def test_user_signs_in_with_the_roles_of_its_groups(
    oidc_api: Api, provider: OidcProvider, client: Herd, http: aiohttp.ClientSession
) -> None:
    """A user gets a session in one project, which it chooses if it has several, and none without a group.

    This also works after a rotation of the provider's keys.
    """
    visitor = Visitor(http, oidc_api.url)
    assert shown(await visitor.signed_in()) == {"next": "/", "error": "no_project"}
    assert await visitor.session(oidc_api) is None
    provider.claims["groups"] = ["engineers"]
    assert await visitor.signed_in("?next=/approvals%3Fx=1") == "/approvals?x=1"
    session = await visitor.session(oidc_api)
    assert (session["project"], session["name"], session["role"]) == ("p1", "ada@example.com", "work")
    earlier = dict(visitor.cookies)
    provider.rotate()
    provider.claims["groups"] = ["engineers", "leads"]
    assert shown(await visitor.signed_in("?next=/budgets")) == {"next": "/budgets", "projects": "p1,p2"}
    assert await visitor.signed_in("?project=p1&next=//evil.example") == "/"
    assert (await visitor.session(oidc_api))["role"] == "operate"
    visitor.cookies, later = earlier, visitor.cookies
    assert await visitor.session(oidc_api) is None, "the earlier session of the browser has ended"
    assert shown(await visitor.signed_in("?project=p3"))["projects"] == "p1,p2"
    assert [one.user for one in (await client.tokens()).tokens] == ["ada@example.com"]
    assert later != earlier


async def test_attacks_on_a_sign_in_give_no_session(
    oidc_api: Api, provider: OidcProvider, http: aiohttp.ClientSession
) -> None:
    """A response to another sign-in or to none, a code used twice, another issuer and an invalid token are refused."""
    provider.claims["groups"] = ["engineers"]
    victim, attacker = Visitor(http, oidc_api.url), Visitor(http, oidc_api.url)
    foreign = await attacker.begun()
    assert shown((await victim.visit(foreign))[1])["error"] == "state"
    await victim.begun()
    assert shown((await victim.visit(foreign))[1])["error"] == "state"
    code = dict(parse_qsl(urlsplit(foreign).query))["code"]
    own = await victim.begun()
    state = dict(parse_qsl(urlsplit(own).query))["state"]
    callback = f"{BEGIN}/callback?state={state}"
    stored = dict(victim.cookies)
    for query, error in (
        (f"&code={code}&iss={provider.issuer}", "identity"),
        (f"&code={code}&iss=https://evil.example", "state"),
        (f"&code={code}", "state"),
        (f"&error=access_denied&iss={provider.issuer}", "denied"),
    ):
        victim.cookies = dict(stored)
        assert shown((await victim.visit(callback + query))[1])["error"] == error, query
    victim.cookies = dict(stored)
    assert (await victim.visit(own))[1] == "/"
    assert await victim.session(oidc_api)
    again = {**victim.cookies, "__Host-sandherd-sign-in": stored["__Host-sandherd-sign-in"]}
    victim.cookies = {name: value for name, value in again.items() if name != "__Host-sandherd"}
    assert shown((await victim.visit(own))[1])["error"] == "identity", "the code was used"
    usual = dict(provider.claims)
    for change in ({"aud": "other"}, {"iss": "https://evil.example"}, {"nonce": "x"}, {"exp": 1}):
        provider.claims = usual | change
        assert shown(await victim.signed_in())["error"] == "identity"
    provider.claims, provider.unsigned = usual, True
    assert shown(await victim.signed_in())["error"] == "identity"
    provider.unsigned, provider.signer = False, OidcProvider().keys[0]
    assert shown(await victim.signed_in())["error"] == "identity"
    assert await victim.session(oidc_api) is None
    assert provider.keys_read <= 2, "an unknown key makes the gateway read the keys again, but not each time"
