"""What an archive of a stranger may hold: nothing in it can be written, or lead, to where it is not unpacked."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandherd.client import HerdError
from sandherd.client.archiving import unpack
from sandherd.inside import Inside, LeadsOutError

Entry = tuple[str, bytes, str]
FILE, LINK, NAME, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
LONG = "d" * 247
STEPS = "abcdefghijklmnop"


def info(name: str, kind: bytes, content: str) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    if kind in {LINK, NAME}:
        found.linkname = content
    else:
        found.size = len(content)
    return found


def archive(entries: Sequence[Entry]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, content in entries:
            tar.addfile(info(name, kind, content), io.BytesIO(content.encode()))
    out.seek(0)
    return out


def judge(entries: Sequence[Entry]) -> None:
    inside = Inside()
    for entry in entries:
        inside.check(info(*entry))


def deceiving() -> list[Entry]:
    """Links over a path that is longer than the system resolves, and a file written through them."""
    entries: list[Entry] = []
    for depth, step in enumerate(STEPS):
        above = "/".join([LONG] * depth)
        entries += [(f"{above}/{LONG}", FOLDER, ""), (f"{above}/{step}", LINK, LONG)]
    far = "/".join([*STEPS, "l" * 254])
    return [
        *entries,
        (far, LINK, "../" * len(STEPS)),
        ("escape", LINK, f"{far}/../../home"),
        ("flag", NAME, "escape/victim"),
        ("flag", FILE, "overwritten"),
    ]


def test_an_archive_that_deceives_python_overwrites_nothing(tmp_path: Path) -> None:
    """CVE-2025-4517: the `data` filter of an older Python lets it through."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/victim").write_text("precious")
    with pytest.raises(HerdError, match="can't be unpacked"):
        unpack(archive(deceiving()), tmp_path / "work/got")
    assert (tmp_path / "home/victim").read_text() == "precious"
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize(
    "entries",
    [
        [("a/../b", FILE, "")],
        [("link", LINK, ".."), ("x", FILE, "")],
        [("a/link", LINK, "../../x")],
        [("a/link", LINK, "/etc")],
        [("link", LINK, "a/../..")],
        [("link", LINK, "a"), ("link/x", FILE, "")],
        [("link", LINK, "a"), ("./link//x/y", FILE, "")],
        [("link", LINK, "a"), ("link", FILE, "")],
        [("link", LINK, "a"), ("link", LINK, "b")],
        [("link", LINK, "a"), ("name", NAME, "link")],
        [("name", NAME, "not/there")],
        [("a", FILE, ""), ("a", LINK, "b"), ("name", NAME, "a")],
        [("", LINK, "a")],
    ],
)
def test_what_may_lead_out_is_refused(entries: list[Entry]) -> None:
    """Whatever is there already, and whatever comes later."""
    with pytest.raises(LeadsOutError):
        judge(entries)


def test_links_that_stay_inside_are_unpacked(tmp_path: Path) -> None:
    """Up and then down, to what is a link itself, to what comes later, and second names of files."""
    entries = [
        ("a/b/up", LINK, "../../top"),
        ("a/b/root", LINK, "../.."),
        ("top", LINK, "./a/file"),
        ("a/file", FILE, "here"),
        ("second", NAME, "./a/file"),
        ("third", NAME, "second"),
    ]
    unpack(archive(entries), tmp_path / "got")
    for name in ("a/b/up", "a/b/root/second", "top", "third"):
        assert (tmp_path / "got" / name).read_text() == "here"
