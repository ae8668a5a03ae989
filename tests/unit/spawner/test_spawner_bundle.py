"""The worker's archive, where the process that makes it fails: each time it is said what helps, or that it may come."""

import sys

import pytest

from spawner.runtimes.boxes import bundle
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault


@pytest.mark.parametrize(
    ("program", "fault", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", ProviderFault.TRANSIENT, "signal 9"),
        (
            "import sys; sys.exit('sandherd-worker is not installed here')",
            ProviderFault.REFUSED,
            "sandherd image build",
        ),
    ],
)
async def test_an_archive_that_is_not_made_is_a_providers_fault(
    monkeypatch: pytest.MonkeyPatch, program: str, fault: ProviderFault, says: str
) -> None:
    """Killed for want of memory it is tried again; not installed it is refused. Neither is kept as the archive."""
    monkeypatch.setattr(bundle, "_MAKING", (sys.executable, "-c", program))
    monkeypatch.setattr(bundle, "_kept", {})
    for make in (bundle.packed, bundle.kept, bundle.digest):
        with pytest.raises(ProviderError, match=says) as failed:
            await make()
        assert failed.value.fault is fault
    assert bundle._kept == {}
