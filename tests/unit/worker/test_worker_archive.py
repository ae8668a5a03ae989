"""Archives of folders: what goes in comes out, and nothing leads out."""

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from sandherd.archives.writer import ArchiveSummary, ArchiveTooLargeError, DeadlinePassedError, pack
from sandherd.contracts.errors import Code, ContractError
from sandherd_worker.access.archive import unpack

LIMIT = 1 << 20


@pytest.fixture(autouse=True, params=["python's filter", "ours"])
def _filtering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both: what this Python has, and what takes its place in one that has none."""
    if request.param == "ours":
        for name in ("data_filter", "tar_filter", "FilterError"):
            monkeypatch.delattr(tarfile, name)


def packed(root: Path, **how: object) -> io.BytesIO:
    out = io.BytesIO()
    pack(root, out, **{"limit": LIMIT, **how})  # type: ignore[arg-type]  # fields by name
    out.seek(0)
    return out


def made(*entries: tuple[str, bytes, str]) -> io.BytesIO:
    """An archive with these entries: name, kind, and content or target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "" if kind == tarfile.REGTYPE else content
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content.encode()))
    out.seek(0)
    return out


@pytest.mark.parametrize("compress", [True, False])
def test_tree_is_packed_and_unpacked_unchanged(tmp_path: Path, compress: bool) -> None:
    """Names of any kind, empty folders, modes and links are preserved."""
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "a/ü ✓").mkdir(parents=True)
    (source / "a/ü ✓/file").write_bytes(os.urandom(5000))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("a")
    os.mkfifo(source / "pipe")
    target = tmp_path / "target"
    target.mkdir()
    assert unpack(packed(source, compress=compress), target, LIMIT) == 3
    assert (target / "a/ü ✓/file").read_bytes() == (source / "a/ü ✓/file").read_bytes()
    assert (target / "empty").is_dir()
    assert (target / "link").readlink() == Path("a")
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (target / "pipe").exists()


def test_names_other_than_utf8_survive(tmp_path: Path) -> None:
    """Names that are not UTF-8 are packed and unpacked unchanged."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    name = os.fsdecode(b"\xff\xfe")
    (tmp_path / "source" / name).write_text("x")
    unpack(packed(tmp_path / "source"), tmp_path / "target", LIMIT)
    assert [path.name for path in (tmp_path / "target").iterdir()] == [name]


def test_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unreadable file is named in the result, and the other files are packed."""
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    really = os.open

    def refuses(path: str, *rest: int, **how: int) -> int:
        if str(path).endswith("/a"):
            raise PermissionError(13, "no")
        return really(path, *rest, **how)

    monkeypatch.setattr(os, "open", refuses)
    found = pack(tmp_path, io.BytesIO(), limit=LIMIT)
    assert (found.files, found.unread) == (1, ("a",))


def test_file_that_changes_during_packing_spoils_no_other(tmp_path: Path) -> None:
    """A file that has grown is truncated, one that has shrunk is padded: the archive stays valid."""
    (tmp_path / "a").write_bytes(b"a" * 100_000)
    (tmp_path / "b").write_bytes(b"b" * 10)

    looks = iter(range(1000))

    def late() -> bool:
        if next(looks) > 0:  # the first look is before anything is read
            (tmp_path / "a").write_bytes(b"a" * 50)
        return False

    with tarfile.open(fileobj=packed(tmp_path, late=late)) as tar:
        assert [(info.name, info.size) for info in tar] == [("a", 100_000), ("b", 10)]


def test_size_and_time_limits_are_enforced(tmp_path: Path) -> None:
    """An archive that is too large or too late raises its typed error."""
    (tmp_path / "a").write_bytes(os.urandom(LIMIT))
    with pytest.raises(ArchiveTooLargeError):
        packed(tmp_path)
    with pytest.raises(DeadlinePassedError):
        packed(tmp_path, limit=LIMIT * 2, late=lambda: True)


@pytest.mark.parametrize(
    "entries",
    [
        [("../evil", tarfile.REGTYPE, "x")],
        [("/evil", tarfile.REGTYPE, "x")],
        [("a/../../evil", tarfile.REGTYPE, "x")],
        [("out", tarfile.SYMTYPE, "../.."), ("out/evil", tarfile.REGTYPE, "x")],
        [("out", tarfile.SYMTYPE, "/etc"), ("out", tarfile.REGTYPE, "x")],
        [("out", tarfile.LNKTYPE, "../../x")],
        [("device", tarfile.CHRTYPE, "")],
        [("etc/hosts", tarfile.REGTYPE, "x"), ("hosts", tarfile.LNKTYPE, "/etc/hosts")],
        [("pipe", tarfile.FIFOTYPE, "")],
    ],
    ids=range(9),
)
def test_entry_outside_the_target_is_refused(tmp_path: Path, entries: list[tuple[str, bytes, str]]) -> None:
    """An entry that leads out by its name, through a link or as a device is refused."""
    target = tmp_path / "deep/target"
    target.mkdir(parents=True)
    with pytest.raises(ContractError) as refusal:
        unpack(made(*entries), target, LIMIT)
    assert refusal.value.problem.code is Code.REFUSED
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep/evil").exists()


def test_link_is_unpacked_wherever_it_leads(tmp_path: Path) -> None:
    """Every virtual environment has a link that leads out. Later entries are unpacked, and none through the link."""
    archive = made(
        ("a/one", tarfile.REGTYPE, "1"),
        ("m/python", tarfile.SYMTYPE, "/usr/bin/python3"),
        ("m/python3", tarfile.SYMTYPE, "python"),
        ("m/far", tarfile.SYMTYPE, "../../elsewhere"),
        ("m/round", tarfile.SYMTYPE, "round"),
        ("z/two", tarfile.REGTYPE, "2"),
    )
    assert unpack(archive, tmp_path, LIMIT) == 6
    assert ((tmp_path / "a/one").read_text(), (tmp_path / "z/two").read_text()) == ("1", "2")
    links = {path.name: str(path.readlink()) for path in (tmp_path / "m").iterdir()}
    assert links == {"python": "/usr/bin/python3", "python3": "python", "far": "../../elsewhere", "round": "round"}


@pytest.mark.parametrize(
    "entries",
    [
        [("a", tarfile.REGTYPE, "x"), ("a", tarfile.SYMTYPE, "b")],
        [("a/b", tarfile.REGTYPE, "x"), ("a", tarfile.SYMTYPE, "/etc")],
        [("a/b", tarfile.SYMTYPE, "x"), ("a", tarfile.SYMTYPE, "/etc")],
        [("a", tarfile.REGTYPE, "x"), ("a/b", tarfile.SYMTYPE, "x")],
    ],
    ids=range(4),
)
def test_entry_that_is_also_a_link_is_refused(tmp_path: Path, entries: list[tuple[str, bytes, str]]) -> None:
    """An archive with a link and another entry of one name is refused in either order."""
    with pytest.raises(ContractError) as refusal:
        unpack(made(*entries), tmp_path, LIMIT)
    assert refusal.value.problem.code is Code.INVALID_FIELD


def nameless() -> bytes:
    """An archive with a name that can't be one."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"path": "a\0b"}
        tar.addfile(info)
    return out.getvalue()


HALF = gzip.compress(made(("a", tarfile.REGTYPE, "x" * 50_000)).getvalue()[:25_000])


@pytest.mark.parametrize("content", [HALF + b"garbage", HALF + HALF[:10] + b"\x07" * 10, nameless()], ids=range(3))
def test_damaged_archive_is_an_invalid_field(tmp_path: Path, content: bytes) -> None:
    """Damage in the compressed bytes, between them and in a name is the same typed error."""
    with pytest.raises(ContractError) as refusal:
        unpack(io.BytesIO(content), tmp_path, LIMIT)
    assert refusal.value.problem.code is Code.INVALID_FIELD


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    """An archive that unpacks to more than the limit is not written."""
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "source/zeros").write_bytes(bytes(4 * LIMIT))
    bomb = packed(tmp_path / "source", compress=True)
    assert len(bomb.getvalue()) < LIMIT // 10
    with pytest.raises(ContractError) as refusal:
        unpack(bomb, tmp_path / "target", LIMIT)
    assert refusal.value.problem.code is Code.TOO_LARGE
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(10)], ids=range(3))
def test_bytes_other_than_an_archive_are_refused(tmp_path: Path, content: bytes) -> None:
    """Bytes that are not an archive are an invalid field."""
    with pytest.raises(ContractError) as refusal:
        unpack(io.BytesIO(content), tmp_path, LIMIT)
    assert refusal.value.problem.code is Code.INVALID_FIELD


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    """An archive is refused wherever it is cut off."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(os.urandom(50_000))
    whole = packed(tmp_path / "source", compress=True).getvalue()
    for end in range(1, len(whole) - 20, 5_000):
        target = tmp_path / f"target-{end}"
        target.mkdir()
        with pytest.raises(ContractError) as refusal:
            unpack(io.BytesIO(whole[:end]), target, LIMIT)
        assert refusal.value.problem.code is Code.INVALID_FIELD


def test_entry_behind_a_link_is_refused(tmp_path: Path) -> None:
    """An entry behind a link is refused also if the link stays inside, where Python's filter would accept it."""
    archive = made(("a", tarfile.DIRTYPE, ""), ("link", tarfile.SYMTYPE, "a"), ("link/x", tarfile.REGTYPE, "x"))
    with pytest.raises(ContractError) as caught:
        unpack(archive, tmp_path, LIMIT)
    assert caught.value.problem.code is Code.REFUSED
    assert not (tmp_path / "a/x").exists()


def test_unreadable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be read is named like a file."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "file").touch()
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # root reads what it likes
    assert pack(tmp_path, io.BytesIO(), limit=LIMIT) == ArchiveSummary(files=1, unread=("closed",))


def test_file_that_vanishes_during_packing_is_skipped(tmp_path: Path) -> None:
    """A file or folder that the agent removes after it was found is left out."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()

    def skips(path: str, _directory: bool) -> bool:
        if path == "b":
            (tmp_path / "a/file").unlink()
            (tmp_path / "a").rmdir()
        return False

    assert pack(tmp_path, io.BytesIO(), limit=LIMIT, skips=skips) == ArchiveSummary(files=1)


def test_second_name_of_a_vanished_file_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of two names is packed under the remaining one, and the archive can be unpacked."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a").write_text("x")
    (source / "b").hardlink_to(source / "a")
    really = os.open

    def vanishing(path: str, *rest: int, **how: int) -> int:
        if str(path).endswith("/a"):
            (source / "a").unlink()
        return really(path, *rest, **how)

    out = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", vanishing)
        assert pack(source, out, limit=LIMIT) == ArchiveSummary(files=1)
    out.seek(0)
    assert unpack(out, target, LIMIT) == 1
    assert (target / "b").read_text() == "x"


def test_modes_and_times_follow_python_filter(tmp_path: Path) -> None:
    """An archive sets no special rights, and its owner can read and write each file."""
    modes = {0o4777: 0o755, 0o2666: 0o644, 0o000: 0o600, 0o111: 0o711, 0o044: 0o644, 0o011: 0o600, 0o755: 0o755}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for mode in modes:
            info = tarfile.TarInfo(f"{mode:o}")
            info.mode, info.mtime, info.uid, info.uname = mode, 1_000_000_000 + mode, 4711, "nobody"
            tar.addfile(info)
    out.seek(0)
    unpack(out, tmp_path, LIMIT)
    found = {int(path.name, 8): path.stat() for path in tmp_path.iterdir()}
    assert {mode: stat.S_IMODE(info.st_mode) for mode, info in found.items()} == modes
    assert {mode: info.st_mtime for mode, info in found.items()} == {mode: 1_000_000_000 + mode for mode in modes}
    assert {info.st_uid for info in found.values()} == {os.getuid()}
