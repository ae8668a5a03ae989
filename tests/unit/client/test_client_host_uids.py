"""What `doctor` and `runtimes` make of the host uid that a runtime reports. Invariant: a shared uid is never right."""

import pytest

from sandherd.client.cli.catalogue import RUNTIMES, print_catalogue
from sandherd.client.cli.checks import State
from sandherd.client.cli.host_uids import judge_host_uids
from sandherd.contracts.requests import Catalogue, RuntimeView
from sandherd.contracts.specs import Limits


@pytest.mark.parametrize(
    ("whose", "state", "words"),
    [
        ("own", State.RIGHT, "a host uid of its own"),
        ("subordinate", State.RIGHT, "a subordinate uid of the spawner's user"),
        ("spawner", State.WORTH_A_LOOK, "share the host uid of the spawner"),
        ("root", State.WORTH_A_LOOK, "share the uid of the host's root"),
    ],
)
def test_doctor_states_whose_uid_sandboxes_have(whose: str, state: State, words: str) -> None:
    """With the runtime's name, and with a remedy where the uid is shared."""
    (check,) = judge_host_uids([RuntimeView(runtime="process", host_uid=whose)])
    assert (check.state, bool(check.remedy)) == (state, state is not State.RIGHT)
    assert words in check.found
    assert "runtime process" in check.found


@pytest.mark.parametrize("whose", ["", "of a later release"])
def test_a_runtime_that_does_not_report_it_is_not_judged(whose: str) -> None:
    """A provider's, an older spawner's, and one whose answer this release does not know."""
    assert judge_host_uids([RuntimeView(runtime="docker", host_uid=whose)]) == []


def test_runtimes_has_a_column_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Below its heading, for each runtime."""
    told = [RuntimeView(runtime=f"r-{whose}", host_uid=whose) for whose in ("own", "spawner", "root")]
    most = Limits()
    print_catalogue(
        Catalogue(
            runtimes=told,
            harnesses=[],
            defaults=most,
            caps=most,
            max_attempts=1,
            max_ttl_seconds=1,
            max_file_bytes=1,
        )
    )
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "HOST UID" in RUNTIMES
    column = heading.index("HOST UID")
    assert [row[column:].split()[0] for row in rows[:3]] == ["own", "spawner", "root"]
