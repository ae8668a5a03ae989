"""Artifacts in chunks: a receiver restores what a sender split, and trusts no sender."""

import hashlib
import io
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.chunks import (
    CHUNK_BYTES,
    ArtifactBuilder,
    ChunkReceiver,
    InvalidChunkError,
    chunk_count,
    digest_of,
    index_of,
    message_id,
)
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import ArtifactPiece

SIZES = st.sampled_from([0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])


def cut(content: bytes) -> list[bytes]:
    return [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)] or [b""]


def built(content: bytes) -> ArtifactRef:
    builder = ArtifactBuilder("p1", "sbx-1", "art-1", "text/plain")
    assert [index_of(builder.add(chunk)) for chunk in cut(content)] == list(range(len(cut(content))))
    return builder.reference()


@given(SIZES, st.randoms(use_true_random=False))
def test_chunks_in_any_order_restore_the_content(size: int, random: Random) -> None:
    """Each chunk is written at its index, even twice, and the digest is that of the content."""
    content = bytes(index % 251 for index in range(size))
    reference = built(content)
    assert (reference.size, reference.chunks) == (size, chunk_count(size))
    assert reference.sha256 == hashlib.sha256(content).hexdigest()
    order = [*range(reference.chunks), *range(reference.chunks)]
    random.shuffle(order)
    receiver, out = ChunkReceiver(reference), io.BytesIO()
    for after, index in enumerate(order, 1):
        out.seek(receiver.accept(ArtifactPiece(data=cut(content)[index], index=index, after=after)))
        out.write(cut(content)[index])
        assert receiver.after == after
    assert receiver.complete
    assert digest_of(out) == (reference.size, reference.sha256)


def test_artifact_is_complete_with_its_last_missing_chunk() -> None:
    """The receiver names the first missing chunk."""
    receiver = ChunkReceiver(built(bytes(2 * CHUNK_BYTES)))
    receiver.accept(ArtifactPiece(data=bytes(CHUNK_BYTES), index=1, after=1))
    assert (receiver.complete, receiver.first_missing) == (False, 0)
    receiver.accept(ArtifactPiece(data=bytes(CHUNK_BYTES), index=0, after=2))
    assert receiver.complete


@pytest.mark.parametrize("chunks", [0, 1, 3, 2**40])
def test_chunk_count_that_contradicts_the_size_is_refused(chunks: int) -> None:
    """The reference is refused before any chunk is requested."""
    reference = built(bytes(2 * CHUNK_BYTES)).model_copy(update={"chunks": chunks})
    with pytest.raises(InvalidChunkError):
        ChunkReceiver(reference)


@pytest.mark.parametrize(
    ("index", "size", "after"),
    [(2, 1, 2), (2**40, CHUNK_BYTES, 2), (0, CHUNK_BYTES - 1, 2), (1, 2, 2), (1, 0, 2), (0, CHUNK_BYTES, 1)],
)
def test_unfitting_chunk_is_refused(index: int, size: int, after: int) -> None:
    """A chunk beyond the end, of another length, or repeated from the same position is refused."""
    receiver = ChunkReceiver(built(bytes(CHUNK_BYTES + 1)))
    receiver.accept(ArtifactPiece(data=bytes(1), index=1, after=1))
    with pytest.raises(InvalidChunkError):
        receiver.accept(ArtifactPiece(data=bytes(size), index=index, after=after))


@given(st.integers(0, 10**9 - 1), st.text())
def test_index_is_read_from_the_message_id(index: int, artifact: str) -> None:
    """The index is read whatever the artifact's name."""
    assert index_of(message_id(artifact, index)) == index


@pytest.mark.parametrize("text", ["", "art", "art-", "art-x", "art--", "art-1.", "art-²", "art-١", "art-" + "1" * 10])
def test_invalid_chunk_id_has_no_index(text: str) -> None:
    """A message id of another form, as a sandbox may store, has no index."""
    assert index_of(text) is None
