"""A worker with invalid or endless replies ends a transfer or a command with a typed error."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import retry
from sandherd.client.errors import HerdError
from sandherd.client.sandboxes import archive, transfer
from sandherd.client.sandboxes import execution as executing
from sandherd.contracts.requests import ArtifactPiece, ExecState, FileRead

DIGEST = "0" * 64
ARTIFACT = {"artifact": "art-1", "subject": "sandherd.v1.artifact.default.sbx-1.art-1", "media_type": "x/y"}


class Liar:
    """A link whose answers are those of a worker that lies."""

    def __init__(self, *answers: Any) -> None:
        self._answers = answers
        self.requested = 0

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        del request, timeout
        self.requested += 1
        return self._answers[min(self.requested, len(self._answers)) - 1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the module, reduced to tenths of seconds."""
    monkeypatch.setattr(retry, "RETRY_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(transfer, "STALLED_SECONDS", 0.1)
    monkeypatch.setattr(transfer, "MAX_TRANSFER_SECONDS", 0.3)
    monkeypatch.setattr(executing, "READ_SECONDS", 0.2)


def artifact(size: int, chunks: int) -> dict[str, Any]:
    return ARTIFACT | {"size": size, "chunks": chunks, "sha256": DIGEST}


def read(**fields: Any) -> FileRead:
    return FileRead.model_validate({"path": "x", "kind": "file", "size": 4, "sha256": DIGEST} | fields)


def chunk(index: int, after: int) -> ArtifactPiece:
    return ArtifactPiece.model_validate({"data": "QUFB", "index": index, "after": after})


DOWNLOADS: dict[str, tuple[Any, ...]] = {
    "never done": (read(done=False),),
    "another size": (read(data="QUFB", size=5),),
    "another digest": (read(data="QUFB", size=3),),
    "no digest": (read(data="QUFB", size=3, sha256=None),),
    "nothing at all": (read(),),
    "more chunks than its size has": (read(artifact=artifact(100, 2**40)),),
    "fewer chunks than its size has": (read(artifact=artifact(10**9, 1)),),
    "chunks in a circle": (read(artifact=artifact(300_000, 3)), chunk(0, 1), chunk(1, 2), chunk(0, 1)),
    "the same chunk for ever": (read(artifact=artifact(300_000, 3)), chunk(0, 1)),
    "a chunk beyond its end": (read(artifact=artifact(300_000, 3)), chunk(9, 1)),
    "the wrong bytes": (read(artifact=artifact(3, 1)), chunk(0, 1)),
}


@pytest.mark.parametrize("answers", DOWNLOADS.values(), ids=DOWNLOADS.keys())
async def test_download_with_false_replies_ends(answers: tuple[Any, ...]) -> None:
    """The error states what is wrong, and the wrong bytes are never returned."""
    liar = Liar(*answers)
    with pytest.raises(HerdError):
        await transfer.download(liar, "sbx-1", "x", io.BytesIO())  # type: ignore[arg-type]  # a link that lies
    assert liar.requested < 100


async def test_endless_download_ends() -> None:
    """The worker's statement of progress does not count."""
    liar = Liar(*(read(done=False, moved=n * 2**20) for n in range(1000)))
    with pytest.raises(HerdError, match="keeps replying without progress"):
        await transfer.download(liar, "sbx-1", "x", io.BytesIO())  # type: ignore[arg-type]  # a link that lies
    assert liar.requested < 100


def state(**fields: Any) -> ExecState:
    return ExecState.model_validate({"exec": "exc-1", "state": "running"} | fields)


class Offset(Liar):
    """One whose answer is always the same, but for its offset, which grows."""

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        answer = await super().request(request, timeout=timeout)
        return answer.model_copy(update={"next_offset": self.requested})


EXECUTIONS: dict[str, Callable[[], Liar]] = {
    "ended and never complete": lambda: Liar(state(state="exited", exit_code=0)),
    "running for ever, at once": lambda: Liar(state()),
    "an offset that grows, without output": lambda: Offset(state()),
    "output for ever": lambda: Offset(state(output=[{"stream": "stdout", "data": "QUFB"}])),
}


@pytest.mark.parametrize("lying", EXECUTIONS.values(), ids=EXECUTIONS.keys())
async def test_command_with_false_replies_ends(lying: Callable[[], Liar]) -> None:
    """The end comes a while after its time limit."""
    liar = lying()
    execution = executing.Execution(liar, "sbx-1", "exc-1", 0.2)  # type: ignore[arg-type]  # a link that lies
    with pytest.raises(HerdError, match="keeps replying without progress"):
        async for _ in execution.output():
            pass


async def test_endless_output_of_an_earlier_command_ends() -> None:
    """A reply whose offset grows without progress ends with an error."""
    liar = EXECUTIONS["output for ever"]()
    execution = executing.Execution(liar, "sbx-1", "exc-1")  # type: ignore[arg-type]  # a link that lies
    with pytest.raises(HerdError, match="keeps replying without progress"):
        async for _ in execution.now():
            pass


def packed(*names: str, kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
    return out


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
@pytest.mark.parametrize("deep", [201, 1500, 5000])
def test_deep_archive_is_refused(tmp_path: Path, kind: bytes, deep: int) -> None:
    """Files, folders and links 1,500 levels deep: a typed error, nothing on the disk, and no RecursionError."""
    with pytest.raises(HerdError, match="folders deep"):
        archive.unpack(packed("/".join("a" * deep), kind=kind), tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


def test_deep_tree_is_not_packed(tmp_path: Path) -> None:
    """Packing a folder here that is deeper than can be unpacked is refused too."""
    place = tmp_path
    for _ in range(300):
        place = place / "a"
    place.mkdir(parents=True)
    with pytest.raises(HerdError, match="folders deep"):
        archive.pack(tmp_path, io.BytesIO(), None)
