"""Credentials of GitHub: tokens of an App are limited and renewed in time, and no token leaks."""

import logging
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import Forge
from spawner.forges.github_app import PERMISSIONS, GithubApp
from spawner.forges.locations import GITHUB, ForgeRepository
from tests.doubles.forges import github_apps
from tests.doubles.forges.faults import Way
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.github_apps import App, TokenForm
from tests.doubles.forges.github_faults import refused_merge
from tests.doubles.forges.replies import Reply
from tests.integration.forges.conftest import DRAFT


@pytest.fixture(params=["opaque", "stateless"])
def app(request: pytest.FixtureRequest, github: GitHub) -> App:
    """An App, with both forms of its tokens."""
    form: TokenForm = request.param
    return github.install_app(form=form)


@pytest.fixture
def app_forge(app: App, forges: Forges, repository: ForgeRepository, tmp_path: Path) -> Forge:
    """Our client of the repository, as an App."""
    key = tmp_path / "key.pem"
    key.write_text(app.private_key)
    forges.add_sources(repository.host, [forges.app_tokens(repository.host, GithubApp(str(app.id), key, PERMISSIONS))])
    return forges.of(repository)


async def test_token_of_an_app_is_limited_and_used_again(
    app_forge: Forge, forges: Forges, github: GitHub, repository: ForgeRepository
) -> None:
    """The token is for one repository, with the needed permissions, and for all requests of an hour."""
    await app_forge.find_or_create_pull_request(replace(DRAFT, labels=("agent",), reviewers=("grace",)))
    await app_forge.pull_request(1)
    (issued,) = github.calls.of("apps/create-installation-access-token")
    assert issued.body == {"repositories": ["shop"], "permissions": dict(PERMISSIONS)}
    (token,) = [one for one in github.tokens.values() if one.kind == "installation"]
    assert token.repositories == frozenset({"team/shop"})
    credential = await forges.credentials(repository.host).git_credential(repository)
    assert (credential.username, credential.password) == ("x-access-token", token.value)


async def test_token_is_renewed_before_it_expires(
    app_forge: Forge, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token with four more minutes is not used again, as a push could outlive it."""
    monkeypatch.setattr(github_apps, "LIFETIME", timedelta(minutes=4))
    await app_forge.default_branch()
    monkeypatch.setattr(github_apps, "LIFETIME", timedelta(minutes=6))
    for _ in range(2):
        await app_forge.default_branch()
    assert github.calls.number("apps/create-installation-access-token") == 2
    assert len({call.headers["authorization"] for call in github.calls.of("repos/get")}) == 2


async def test_refused_token_is_renewed_once(app_forge: Forge, github: GitHub) -> None:
    """A revoked token is replaced, and the request repeated; a second refusal is the result."""
    await app_forge.default_branch()
    github.tokens.clear()
    assert await app_forge.default_branch() == "main"
    assert github.calls.number("apps/create-installation-access-token") == 2
    unauthorized = Reply(401, {"message": "Bad credentials"})
    github.refuse("repos/get", unauthorized, times=2)
    with pytest.raises(ForgeError) as failed:
        await app_forge.default_branch()
    assert failed.value.fault is ForgeFault.DENIED
    assert github.calls.number("apps/create-installation-access-token") == 3


async def test_suspended_app_is_denied(app_forge: Forge, app: App) -> None:
    """The text states the suspension; the last token is not used again."""
    app.suspended = datetime.now(UTC)
    with pytest.raises(ForgeError, match="suspended") as failed:
        await app_forge.default_branch()
    assert failed.value.fault is ForgeFault.DENIED


async def test_unusable_key_is_denied_without_its_text(
    forges: Forges, repository: ForgeRepository, tmp_path: Path
) -> None:
    """A missing file, or an invalid key, is denied without its text."""
    key = tmp_path / "key.pem"
    forges.add_sources(repository.host, [forges.app_tokens(repository.host, GithubApp("7", key, PERMISSIONS))])
    for text in (None, "-----BEGIN RSA PRIVATE KEY-----\nsecretsecret\n"):
        if text:
            key.write_text(text)
        with pytest.raises(ForgeError) as failed:
            await forges.of(repository).default_branch()
        assert failed.value.fault is ForgeFault.DENIED
        assert "secretsecret" not in "".join(traceback.format_exception(failed.value))


async def test_replaced_token_is_used(forges: Forges, github: GitHub, repository: ForgeRepository) -> None:
    """A stored token is read again after a refusal, and is denied if it is the same."""
    current = [github.person_token("ada", "fine_grained")]
    forges.add_sources(repository.host, [StoredTokens(lambda: current[0])])
    forge = forges.of(repository)
    github.revoke(current[0])
    with pytest.raises(ForgeError) as failed:
        await forge.default_branch()
    assert failed.value.fault is ForgeFault.DENIED
    current[0] = github.person_token("ada", "oauth")
    assert await forge.default_branch() == "main"


async def test_no_token_is_shown_anywhere(
    forges: Forges, github: GitHub, repository: ForgeRepository, caplog: pytest.LogCaptureFixture
) -> None:
    """No URL, log, error or cause has a token (tracebacks' locals excepted), even if a forge returns it."""
    caplog.set_level(logging.DEBUG)
    token = github.person_token("ada")
    forges.add_sources(repository.host, [StoredTokens(lambda: token)])
    forge = forges.of(repository)
    echo = f"Bad token Bearer {token} in {token}"
    shown = [
        repr(forges.credentials(repository.host)),
        repr(await forges.credentials(repository.host).tokens.token(repository)),
    ]
    github.refuse("repos/get", Reply(422, {"message": echo, "errors": [{"message": token}]}))
    github.refuse("repos/get", Reply(500, raw=echo.encode(), content_type="text/plain"))
    github.refuse("repos/get", Reply(403, {"message": echo}, {"retry-after": "0"}))
    github.refuse("repos/get", Reply(200, {"default_branch": [token]}))
    github.refuse("repos/get", Reply(200, raw=token.encode()))
    github.break_off("repos/get", Way.DROPPED, times=2)  # aiohttp repeats a GET
    for _ in range(6):
        with pytest.raises(ForgeError) as failed:
            await forge.default_branch()
        shown += [*traceback.format_exception(failed.value), repr(failed.value), repr(vars(failed.value))]
        causes = (failed.value.__cause__, failed.value.__context__)
        assert causes == (None, None)
    github.refuse("repos/get", refused_merge("\x1b[31mred\x00\u202e\nline" + "x" * 5000))
    with pytest.raises(ForgeError) as failed:
        await forge.default_branch()
    assert failed.value.reason.startswith("[31mred line")
    assert len(failed.value.reason) <= 300
    everything = "\n".join([*shown, caplog.text, *(str(call.query) + call.path for call in github.calls)])
    assert token not in everything
    assert token[8:] not in everything


async def test_credentials_of_this_host_are_not_used(
    forge: Forge, github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A netrc(5) file with an entry for the forge has no effect, but a proxy has."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login x password y\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert await forge.default_branch() == "main"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ForgeError) as failed:
        await forge.default_branch()
    assert not failed.value.permanent


async def test_other_credential_of_a_host_is_used(
    forge: Forge, forges: Forges, github: GitHub, repository: ForgeRepository
) -> None:
    """A new credential is used also for a repository that was used before; a host without one is denied."""
    assert await forge.default_branch() == "main"
    token = github.person_token("grace")
    forges.add_sources(repository.host, [StoredTokens(lambda: token)])
    await forges.of(repository).default_branch()
    assert [call.principal for call in github.calls.of("repos/get")] == ["ada", "grace"]
    with pytest.raises(ForgeError) as failed:
        forges.of(ForgeRepository(GITHUB, "team", "shop"))
    assert failed.value.fault is ForgeFault.DENIED
