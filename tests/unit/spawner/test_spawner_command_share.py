"""Finding the projects that use more than their share of COMMANDS."""

from collections.abc import Mapping, Sequence

from spawner.sandboxes.command_share import SAMPLES, StoredCommands, above_share, candidates, sampled

MIB = 1024 * 1024
LIMIT = 128 * MIB
MAD, P1 = "sandherd.v1.command.spawner.submit_task.mad", "sandherd.v1.command.spawner.submit_task.p1"
SEND = "sandherd.v1.command.message-relay.send_message.mad"
END = "sandherd.v1.command.spawner.terminate_sandbox.mad"


def above(counts: Mapping[str, int], sizes: Mapping[str, Sequence[int]], held: int = 0) -> dict[str, int]:
    return above_share(StoredCommands(held, counts, MIB), sizes, LIMIT)


def test_only_projects_possibly_above_their_share_are_measured() -> None:
    """The number of a project's messages decides; all subjects of such a project are measured."""
    assert candidates(StoredCommands(0, {MAD: 128, END: 1, P1: 50}, MIB), LIMIT) == [MAD, END]


def test_few_large_commands_exceed_the_share_and_many_small_do_not() -> None:
    """Bytes count, no matter how many messages other projects have."""
    found = above({MAD: 600, P1: 100_000}, {MAD: [250_000] * 3, P1: [300, 310]})
    assert found == {"mad": 150_000_000}


def test_unsampled_large_commands_are_found_by_subtraction() -> None:
    """Half a million tiny commands hide 400 MiB; the other projects can hold no more than 20 MiB."""
    assert above({MAD: 500_000, P1: 20}, {MAD: [101] * SAMPLES}, held=450 * MIB) == {"mad": 430 * MIB}


def test_project_with_many_small_commands_is_not_blamed_for_another() -> None:
    """The stream is full, and the other's large commands can't be identified by the numbers."""
    found = above({MAD: 600, P1: 100_000}, {MAD: [700_000], P1: [300]}, held=450 * MIB)
    assert found.keys() == {"mad"}


def test_subjects_of_a_project_count_together() -> None:
    """Two large subjects are below the share each, and above it together."""
    assert above({MAD: 300, SEND: 300, END: 5}, {MAD: [250_000], SEND: [250_000], END: [400]}) == {"mad": 150_002_000}


def test_sampled_sequences_are_within_the_stream() -> None:
    """Short streams, and one of a single message, are included."""
    assert sampled(7, 7, 0.9) == [7]
    assert sampled(1, 4, 0.0) == [1, 2, 3]
    found = sampled(1000, 9000, 0.999)
    assert (len(found), found[0] >= 1000, found[-1] <= 9000) == (SAMPLES, True, True)
