"""Checks of the host uid that a runtime reports. Invariant: a shared uid is never right."""

import pytest

from sandherd.cli.render.catalogue import print_catalogue
from sandherd.client.doctor.check import CheckState
from sandherd.client.doctor.runtimes import check_host_uids
from sandherd.contracts.requests import Catalogue, RuntimeView
from sandherd.contracts.specs import SandboxLimits


@pytest.mark.parametrize(
    ("whose", "state", "words"),
    [
        ("own", CheckState.RIGHT, "a host uid of its own"),
        ("subordinate", CheckState.RIGHT, "a subordinate uid of the spawner's user"),
        ("spawner", CheckState.WARNING, "share the host uid of the spawner"),
        ("root", CheckState.WARNING, "share the uid of the host's root"),
    ],
)
def test_doctor_states_whose_uid_sandboxes_have(whose: str, state: CheckState, words: str) -> None:
    """The runtime is named, with a remedy where the uid is shared."""
    (check,) = check_host_uids([RuntimeView(runtime="process", host_uid=whose)])
    assert (check.state, bool(check.remedy)) == (state, state is not CheckState.RIGHT)
    assert words in check.found
    assert "runtime process" in check.found


@pytest.mark.parametrize("whose", ["", "of a later release"])
def test_runtime_without_a_host_uid_is_not_judged(whose: str) -> None:
    """A provider's, an older spawner's, and an unknown value are skipped."""
    assert check_host_uids([RuntimeView(runtime="docker", host_uid=whose)]) == []


def test_runtimes_has_a_column_for_host_uids(capsys: pytest.CaptureFixture[str]) -> None:
    """Each runtime has one, below the heading."""
    views = [RuntimeView(runtime=f"r-{whose}", host_uid=whose) for whose in ("own", "spawner", "root")]
    most = SandboxLimits()
    print_catalogue(
        Catalogue(
            runtimes=views,
            harnesses=[],
            defaults=most,
            caps=most,
            max_attempts=1,
            max_ttl_seconds=1,
            max_file_bytes=1,
        )
    )
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "HOST UID" in heading
    column = heading.index("HOST UID")
    assert [row[column:].split()[0] for row in rows[:3]] == ["own", "spawner", "root"]
