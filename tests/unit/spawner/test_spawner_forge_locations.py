"""Which forge a URL belongs to, with valid owners and names only."""

import pytest

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.locations import ForgeHost, ForgeKind, forge_of

HOSTS = (
    ForgeHost(ForgeKind.GITHUB, "https://github.example.com"),
    ForgeHost(ForgeKind.GITLAB, "https://example.com/gitlab/"),
    ForgeHost(ForgeKind.GITEA, "http://git.example.com:3000"),
)


@pytest.mark.parametrize(
    ("url", "kind", "path", "api"),
    [
        ("https://github.com/team/shop", ForgeKind.GITHUB, "team/shop", "https://api.github.com"),
        ("https://GitHub.com:443/team/shop.git/", ForgeKind.GITHUB, "team/shop", "https://api.github.com"),
        ("https://github.com/team/.github", ForgeKind.GITHUB, "team/.github", "https://api.github.com"),
        ("https://github.com/team/-rf", ForgeKind.GITHUB, "team/-rf", "https://api.github.com"),
        ("https://github.example.com/a/b.git", ForgeKind.GITHUB, "a/b", "https://github.example.com/api/v3"),
        ("https://example.com/gitlab/a/b/c/d.git", ForgeKind.GITLAB, "a/b/c/d", "https://example.com/gitlab/api/v4"),
        ("https://gitlab.com/a/b", ForgeKind.GITLAB, "a/b", "https://gitlab.com/api/v4"),
        ("http://git.example.com:3000/a/b", ForgeKind.GITEA, "a/b", "http://git.example.com:3000/api/v1"),
    ],
)
def test_repository_of_a_forge_is_found(url: str, kind: ForgeKind, path: str, api: str) -> None:
    """It is found by the configured URL of its host, which may have a port or a folder."""
    found = forge_of(url, HOSTS)
    assert found is not None
    assert (found.host.kind, found.path, found.host.api_url) == (kind, path, api)
    assert forge_of(found.url + ".git", HOSTS) == found


@pytest.mark.parametrize(
    "url",
    [
        "/srv/shop.git", "file:///srv/shop.git", "https://git.other.com/a/b", "http://github.com/team/shop",
        "https://github.com.evil.com/team/shop", "https://github.com:8443/team/shop", "https://example.com/a/b",
        "https://example.com/gitlab2/a/b", "ssh://git@github.com/team/shop", "https://[", "https://github.com:0/a/b",
        "https://github.com/\u0430/b", "https://github.com/a\n/b", "https:///team/shop", "x" * 5000,
    ],
)  # fmt: skip
def test_other_url_is_of_no_forge(url: str) -> None:
    """The host, port, scheme or folder differs, or the text is not a URL."""
    assert forge_of(url, HOSTS) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com", "https://github.com/team", "https://github.com/team/shop/tree/main",
        "https://github.com/../shop", "https://github.com/team/..", "https://github.com/team/%2e%2e",
        "https://github.com/team/shop?x=1", "https://github.com/team/shop#x", "https://github.com/te am/shop",
        "https://github.com/team/" + "x" * 101, "https://example.com/gitlab/a",
        "https://example.com/gitlab" + "/a" * 22,
        "https://github.com/team/.git", "https://github.com//shop",
    ],
)  # fmt: skip
def test_url_without_a_valid_owner_and_name_is_refused(url: str) -> None:
    """Such a URL of a known host is refused, so that no part of it gets into a request."""
    with pytest.raises(ForgeError) as refused:
        forge_of(url, HOSTS)
    assert refused.value.fault is ForgeFault.REFUSED


@pytest.mark.parametrize("user", ["hidden", "x-access-token:hidden", "hidden:"])
def test_url_with_a_credential_is_refused_without_showing_it(user: str) -> None:
    """The user has to configure a token instead."""
    with pytest.raises(ForgeError) as refused:
        forge_of(f"https://{user}@github.com/team/shop")
    assert "hidden" not in str(refused.value)
    assert "credential" in str(refused.value)


def test_origin_for_git_has_no_folder() -> None:
    """Git selects credentials by the origin."""
    assert HOSTS[1].origin == "https://example.com"
    assert HOSTS[2].origin == "http://git.example.com:3000"
