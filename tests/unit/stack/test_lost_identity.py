"""A home that has lost its keys, not what its broker has stored: named by each command, and never replaced."""

from pathlib import Path
from typing import Any

import pytest

from sandherd.cli.doctor.local_stack import check_identity
from sandherd.cli.exit_status import run_command
from sandherd.client.doctor.check import CheckState
from sandherd.lost_identity import lost_identity
from sandherd.stack import ShutdownResult


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home without keys, of a herd with one nats-server."""
    for name in ("nats/data", "postgres", "creds"):
        (tmp_path / "herd" / name).mkdir(parents=True)
    return tmp_path / "herd"


def test_keys_are_lost_only_beside_stored_data(home: Path, tmp_path: Path) -> None:
    """A new home has neither; a herd of three servers is one as well."""
    assert lost_identity(tmp_path / "new") is None
    assert f"{home / 'identity'} is missing" in (lost_identity(home) or "")
    (home / "nats").rename(home / "nats-2")
    (home / "nats-2" / "data").mkdir(exist_ok=True)
    assert "without which nats-2/ can't be used" in (lost_identity(home) or "")
    (home / "identity" / "root").mkdir(parents=True)
    (home / "identity" / "root" / "operator.nk").write_text("key")
    assert lost_identity(home) is None


@pytest.mark.parametrize("words", [["up"], ["up", "--no-wait"], ["status"]], ids=" ".join)
def test_command_names_the_missing_keys_and_both_ways_on(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once: nothing is started, and no keys are created. Deleting data is not the only remedy."""
    assert run_command(["--home", str(home), *words]) == 1
    assert capsys.readouterr().err == (
        f"sandherd: {home / 'identity'} is missing: it has the herd's keys, without which nats/ can't be used; "
        "restore identity/ from a backup of this herd; or, to begin a new herd without the history of this one, "
        f"move or delete nats/, postgres/, creds/ in {home}\n"
    )
    assert {path.name for path in home.iterdir()} == {"nats", "postgres", "creds"}


def test_doctor_has_a_row_for_missing_keys(home: Path, tmp_path: Path) -> None:
    """With both remedies; none where no stack has lost anything."""
    (check,) = check_identity(home)
    assert (check.name, check.state) == ("identity", CheckState.WRONG)
    assert "is missing" in check.found
    assert "restore identity/ from a backup" in (check.remedy or "")
    assert check_identity(tmp_path) == []


def test_down_that_could_not_end_sandboxes_names_the_missing_keys(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To try again would not help without them."""

    async def left(home: Path, **_: Any) -> ShutdownResult:
        return ShutdownResult(home=home, sandboxes_left=True)

    monkeypatch.setattr("sandherd.stack.down", left)
    assert run_command(["--home", str(home), "down"]) == 1
    assert f"{home / 'identity'} is missing" in capsys.readouterr().err
