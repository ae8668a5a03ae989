"""Untrusted archives: no entry is written, or leads, outside of the target."""

import gzip
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandherd.archives.safe_paths import SafePaths, UnsafePathError, may_point_outside
from sandherd.client import HerdError
from sandherd.client.sandboxes.archive import unpack

Entry = tuple[str, bytes, str]
FILE, LINK, NAME, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
LONG = "d" * 247
STEPS = "abcdefghijklmnop"


@pytest.fixture(autouse=True, params=["python's filter", "ours"])
def _filtering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both: what this Python has, and what takes its place in one that has none."""
    if request.param == "ours":
        for name in ("data_filter", "tar_filter", "FilterError"):
            monkeypatch.delattr(tarfile, name)


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


def check_entries(entries: Sequence[Entry]) -> None:
    inside = SafePaths()
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


def test_archive_that_deceives_python_overwrites_nothing(tmp_path: Path) -> None:
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
        [("/a", FILE, "")],
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
def test_entry_that_may_lead_out_is_refused(entries: list[Entry]) -> None:
    """An archive is refused whatever exists already, and whatever entry follows."""
    with pytest.raises(UnsafePathError):
        check_entries(entries)


@pytest.mark.parametrize(
    ("name", "target", "may"),
    [
        ("link", "..", True),
        ("a/link", "../../x", True),
        ("a/link", "/etc", True),
        ("link", "a/../..", True),
        ("a/link", "b/../../c", True),
        ("a/link", "../b", False),
        ("./a//link", "..", False),
        ("link", ".", False),
    ],
)
def test_link_may_lead_out_unless_certain(name: str, target: str, may: bool) -> None:
    """A link up to the folder at most and then down stays, whatever is on its path."""
    assert may_point_outside(info(name, LINK, target)) is may


MIXED: list[Entry] = [
    ("a/one", FILE, "1"),
    ("m/python", LINK, "/usr/bin/python3"),
    ("m/python3", LINK, "python"),
    ("m/up", LINK, "../.."),
    ("z/two", FILE, "2"),
]


def test_links_that_may_lead_out_are_left_out(tmp_path: Path) -> None:
    """They are returned by name. A second run has the same result, and other files stay."""
    for _ in range(2):
        left = unpack(archive(MIXED), tmp_path / "got")
        assert left == (("m/python", "/usr/bin/python3"), ("m/up", "../.."))
        assert ((tmp_path / "got/a/one").read_text(), (tmp_path / "got/z/two").read_text()) == ("1", "2")
        assert [path.name for path in (tmp_path / "got/m").iterdir()] == ["python3"]
        assert not list(tmp_path.rglob(".sandherd-*"))
        (tmp_path / "got/a/one").write_text("old")
        (tmp_path / "got/own").touch()


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    """A sandbox compresses nothing: an archive that is larger unpacked than transferred is none of its."""
    bomb = io.BytesIO(gzip.compress(archive([("small", FILE, "x"), ("large", FILE, "0" * (1 << 20))]).getvalue()))
    with pytest.raises(HerdError, match="larger than"):
        unpack(bomb, tmp_path / "got")
    assert not list(tmp_path.iterdir())


def test_existing_link_is_not_written_through(tmp_path: Path) -> None:
    """One in a file's place is replaced; one in a folder's place is a conflict, and nothing is unpacked."""
    (tmp_path / "got/a").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/one").write_text("precious")
    (tmp_path / "got/a/one").symlink_to(tmp_path / "home/one")
    unpack(archive(MIXED), tmp_path / "got")
    assert ((tmp_path / "home/one").read_text(), (tmp_path / "got/a/one").read_text()) == ("precious", "1")
    (tmp_path / "clash").mkdir()
    (tmp_path / "clash/z").symlink_to(tmp_path / "home")
    with pytest.raises(HerdError, match="clash/z is a folder") as raised:
        unpack(archive(MIXED), tmp_path / "clash")
    assert raised.value.problem.remedy
    assert [path.name for path in (tmp_path / "clash").iterdir()] == ["z"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["one"]


def test_unwritable_target_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """A target in the place of a file or below one raises no traceback."""
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(HerdError, match="can't be written") as raised:
            unpack(archive(MIXED), tmp_path / place)
        assert raised.value.problem.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_links_that_stay_inside_are_unpacked(tmp_path: Path) -> None:
    """Links may go up and down, to a link, to a later entry, and be second names of files."""
    entries = [
        ("a/b/up", LINK, "../../top"),
        ("a/b/above", LINK, "../.."),
        ("top", LINK, "./a/file"),
        ("a/file", FILE, "here"),
        ("second", NAME, "./a/file"),
        ("third", NAME, "second"),
    ]
    unpack(archive(entries), tmp_path / "got")
    for name in ("a/b/up", "a/b/above/second", "top", "third"):
        assert (tmp_path / "got" / name).read_text() == "here"
