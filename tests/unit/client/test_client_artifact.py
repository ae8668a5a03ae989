"""`Herd.artifact`: what events refer to, with references that a sandbox may have invented."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.client import Herd, HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import DownloadChunk
from sandherd.contracts.subjects import ARTIFACT
from tests.unit.client.test_client_transfers import DATA, SHA, Played, chunk_replies


def reference(**more: Any) -> ArtifactRef:
    subject = ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="art-1")
    known = {"artifact": "art-1", "subject": subject, "size": len(DATA), "sha256": SHA, "chunks": 3}
    return ArtifactRef.model_validate(known | more)


def herd_of(played: Played) -> Herd:
    return Herd(SimpleNamespace(project="p1", request=played.request))  # type: ignore[arg-type]  # all that it needs


async def test_artifact_is_read_from_its_owner() -> None:
    """The content is written in order, though chunks are received in another."""
    played, out = Played(DownloadChunk=list(chunk_replies(2, 0, 1))), io.BytesIO()
    await herd_of(played).artifact(reference(), out)
    assert out.read() == DATA
    assert all(isinstance(requested, DownloadChunk) and requested.sandbox == "sbx-1" for requested in played.requested)


@pytest.mark.parametrize(
    "subject",
    [
        ARTIFACT.fill(project="p2", sandbox="sbx-1", artifact="art-1"),
        ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="art-2"),
        "sandherd.v1.artifact.p1.*.art-1",
        "sandherd.v1.artifact.p1.>",
        "$JS.API.INFO",
        "",
    ],
)
async def test_invented_references_are_refused(subject: str) -> None:
    """A subject of another project, of another artifact, with wildcards or of something else sends nothing."""
    played = Played()
    with pytest.raises(HerdError) as caught:
        await herd_of(played).artifact(reference(subject=subject), io.BytesIO())
    assert caught.value.problem.code in {Code.INVALID_FIELD, Code.UNSAFE_NAME}
    assert played.requested == []


async def test_other_content_is_an_error() -> None:
    """Content with another digest is never success."""
    with pytest.raises(HerdError, match="not what was stored"):
        await herd_of(Played(DownloadChunk=list(chunk_replies(0, 1, 2)))).artifact(
            reference(sha256="0" * 64), io.BytesIO()
        )
