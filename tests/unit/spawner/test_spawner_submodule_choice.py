"""Which submodules a checkout has, from the hostile text of `.gitmodules`."""

import pytest

from sandherd.contracts.repositories import MAX_SUBMODULES, Submodule
from spawner.repositories.git import GitError
from spawner.repositories.submodule_choice import MAX_DEPTH, check_number, choose_submodules, parse_modules, resolve_url

PARENT = "https://git.example.org/team/shop.git"
COMMIT = "1" * 40


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://git.example.org/a/b", "https://git.example.org/a/b"),
        ("../lib.git", "https://git.example.org/team/lib.git"),
        ("./../../other/lib.git/", "https://git.example.org/other/lib.git"),
        ("./sub", "https://git.example.org/team/shop.git/sub"),
        ("git@git.example.org:team/lib.git", "https://git.example.org/team/lib.git"),
        ("ssh://git@git.example.org/team/lib.git", "https://git.example.org/team/lib.git"),
    ],
)
def test_url_is_resolved(text: str, url: str) -> None:
    """A relative URL is resolved from that of the repository. An ssh URL becomes an https URL."""
    assert resolve_url(text, PARENT, "lib") == url


@pytest.mark.parametrize(
    "text",
    [
        *(
            "ext::sh -c id",
            "/etc",
            "file:///etc",
            "-x",
            "--upload-pack=id",
            "",
            "../../../x",
            "../../../../../../x",
            "ftp://git.example.org/a",
        ),
        *("git://git.example.org/a", "http://", "https://[", "https:///etc", "c:\\x", "ssh://git@h:2222/x", "fd::3"),
    ],
)
def test_url_of_another_kind_is_refused(text: str) -> None:
    """It is refused whatever git would do with it."""
    with pytest.raises(GitError, match="submodule 'lib'"):
        choose_submodules(
            {"lib": {"path": "lib", "url": text}}, {"lib": COMMIT}, parent=None, url=PARENT,
            origins={"https://git.example.org"},
        )  # fmt: skip


def test_relative_url_of_a_local_repository_is_refused() -> None:
    """A client's local repository has no URL here."""
    with pytest.raises(GitError, match="local"):
        resolve_url("../lib", None, "lib")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *(("../../hooks", "lib"), ("-x", "lib"), ("/etc", "lib"), ("a/.git/b", "lib"), ("x", "-rf"), ("x", "a/../b")),
        *(("x", ".git/hooks"), ("x", "a\nb"), ("x" * 251, "lib"), ("a/.GIT", "lib"), ("x", "/lib")),
    ],
)
def test_hostile_name_or_path_is_refused(name: str, path: str) -> None:
    """It would be a path outside of its folder, or an option."""
    with pytest.raises(GitError, match="submodule"):
        choose_submodules(
            {name: {"path": path, "url": "../lib"}}, {path: COMMIT}, parent=None, url=PARENT,
            origins={"https://git.example.org"},
        )  # fmt: skip


def test_only_what_both_name_is_a_submodule() -> None:
    """`.gitmodules` may name submodules that no longer exist. A URL with a credential is refused."""
    entries = parse_modules(
        "submodule.a.b.path\nlib\0submodule.a.b.url\n../lib\0submodule.old.path\nold\0submodule.x\n1\0"
    )
    around = Submodule(name="vendor", path="vendor", url=PARENT, commit=COMMIT)
    origins = {"https://git.example.org"}
    [found] = choose_submodules(entries, {"lib": COMMIT, "other": COMMIT}, parent=around, url=PARENT, origins=origins)
    assert found == Submodule(name="a.b", path="vendor/lib", url="https://git.example.org/team/lib", commit=COMMIT)
    secret = {"lib": {"path": "lib", "url": "https://user:token@git.example.org/x"}}
    with pytest.raises(GitError, match="credential") as refused:
        choose_submodules(secret, {"lib": COMMIT}, parent=None, url=PARENT, origins=origins)
    assert "token@" not in str(refused.value)


def test_submodules_in_the_folders_of_others_are_refused() -> None:
    """A submodule's name would be a folder in another one's repository, such as that of its hooks."""
    entries = {"a": {"path": "a", "url": "../a"}, "a/hooks": {"path": "b", "url": "../b"}}
    with pytest.raises(GitError, match="shares"):
        choose_submodules(
            entries, {"a": COMMIT, "b": COMMIT}, parent=None, url=PARENT, origins={"https://git.example.org"}
        )


def test_number_and_depth_have_a_maximum() -> None:
    """Submodules may be nested without end."""
    one = Submodule(name="a", path="a", url=PARENT, commit=COMMIT)
    check_number([one] * MAX_SUBMODULES, MAX_DEPTH)
    for number, depth in ((MAX_SUBMODULES + 1, 1), (1, MAX_DEPTH + 1)):
        with pytest.raises(GitError, match="more than"):
            check_number([one] * number, depth)
