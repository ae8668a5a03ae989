"""The folder of the local stack, as the settings and the documents have it."""

import re
import subprocess
from pathlib import Path

import pytest

from sandherd.settings.client import default_home

DOCS = Path(__file__).parents[3] / "docs"
DEFAULTS = {
    (path.name, default)
    for path in DOCS.glob("*.md")
    for default in re.findall(r'"(\$\{SANDHERD_HOME:-.*\})"', path.read_text())
}


@pytest.mark.parametrize("data", [None, "/data"])
@pytest.mark.parametrize(("page", "default"), sorted(DEFAULTS))
def test_pages_use_the_stack_that_up_starts(
    page: str, default: str, data: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with another default would start a second stack, in which the reader's tasks are missing."""
    monkeypatch.delenv("SANDHERD_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    if data is not None:
        monkeypatch.setenv("XDG_DATA_HOME", data)
    shown = subprocess.run(["sh", "-c", f'printf %s "{default}"'], capture_output=True, text=True, check=True)
    assert shown.stdout == str(default_home()), page


def test_pages_with_a_default_are_found() -> None:
    """The test above has cases."""
    assert {page for page, _ in DEFAULTS} == {"subscribe.md", "wire.md"}
