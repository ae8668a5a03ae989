"""The tests that were merged, each with its claim and the test that shows it now."""

from collections.abc import Sequence
from typing import Final

_CLI: Final = "integration/operating/test_cli_environments.py"

MERGED: Final[Sequence[tuple[str, str, str]]] = (
    (
        "integration/stack/test_stack_backup.py::test_a_running_stack_keeps_its_settings_and_is_not_stopped_in_vain",
        "after a backup a stack has the settings of `up`; for a folder that can't be written it is not stopped",
        "integration/stack/test_stack_backup.py::test_an_interrupted_backup_leaves_the_stack_running_and_no_folder",
    ),
    (
        "integration/stack/test_stack_backup.py::test_a_stack_of_three_servers_is_restored_with_three_or_with_one",
        "a herd that was restored on three servers works (the stack of three is restored, and no longer started)",
        "integration/operating/test_backup_cluster.py::test_backup_is_restored_on_three_servers",
    ),
    (
        "integration/stack/test_small_disk.py::test_up_states_the_needed_space_before_it_writes",
        "an existing herd starts on the smallest disk (the separate start before the disk was full is omitted)",
        "integration/stack/test_small_disk.py::test_up_states_the_needed_space_before_it_writes",
    ),
    (
        "e2e/test_subordinate_uids.py::test_killed_stack_is_ended_with_its_sandboxes",
        "`down` ends the sandboxes of a stack whose supervisor and spawner were killed",
        "e2e/test_subordinate_uids.py::test_stopped_stack_leaves_only_files_of_the_user",
    ),
    (
        "integration/operating/test_cli_environments.py::test_unwritable_output_is_one_line_and_a_failure",
        "each command and each `--help` fails for /dev/full and for a closed descriptor (each has one of them now)",
        f"{_CLI}::test_unwritable_output_is_one_line_and_a_failure_and_ascii_output_is_escaped",
    ),
    (
        "integration/operating/test_cli_environments.py::test_ascii_output_is_escaped_and_json_stays_json",
        "no command fails for letters that the encoding of the terminal lacks (they run once for both claims)",
        f"{_CLI}::test_unwritable_output_is_one_line_and_a_failure_and_ascii_output_is_escaped",
    ),
    (
        "integration/operating/test_cli_environments.py::test_unusable_home_is_one_line",
        "a home that is a file, in /proc or not UTF-8 is one line for each command (each has one of these homes now)",
        f"{_CLI}::test_unusable_home_is_one_line",
    ),
    (
        "integration/spawner/test_spawner_access.py (parametrized by request)",
        "each request to an unknown, ended or paused sandbox or the fleet, or with an invalid reference, is refused",
        "integration/spawner/test_spawner_access.py::test_unknown_sandbox_is_reported",
    ),
    (
        "integration/spawner/test_spawner_names.py::test_invalid_reply_of_a_worker_is_refused_without_a_retry",
        "each invalid reply of a worker is refused (one herd for all)",
        "integration/spawner/test_spawner_names.py::test_invalid_reply_of_a_worker_is_refused_without_a_retry",
    ),
    (
        "integration/spawner/test_spawner_direct.py::test_command_for_a_missing_or_ended_sandbox_is_refused",
        "each command for a missing sandbox is refused (one herd for all)",
        "integration/spawner/test_spawner_direct.py::test_command_for_a_missing_sandbox_is_refused",
    ),
    (
        "integration/spawner/test_spawner_direct.py::test_unavailable_sandbox_is_refused",
        "each sandbox that can't be made as requested is refused (one herd for all)",
        "integration/spawner/test_spawner_direct.py::test_unavailable_sandbox_is_refused",
    ),
    (
        "integration/spawner/test_spawner_schedules.py::test_overlap_policy_applies_while_a_task_runs",
        "each policy of overlaps (one herd for all)",
        "integration/spawner/test_spawner_schedules.py::test_overlap_policy_applies_while_a_task_runs",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_folder_with_links_that_lead_out_is_copied_both_ways",
        "links that lead out of a folder are left out of a download and named",
        "integration/client/test_client_exec_and_cp.py::test_files_and_links_are_copied_both_ways",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_source_other_than_a_file_is_refused",
        "a copy of a device or a pipe is refused",
        "integration/client/test_client_exec_and_cp.py::test_invalid_copies_are_refused",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_path_outside_the_work_tree_is_refused",
        "a copy to or from a path outside of the work tree is refused",
        "integration/client/test_client_exec_and_cp.py::test_invalid_copies_are_refused",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_file_over_the_cap_is_refused_before_sending",
        "a file over the cap is refused before it is sent",
        "integration/client/test_client_exec_and_cp.py::test_invalid_copies_are_refused",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_runtimes_are_listed_by_name",
        "`runtimes -o name` lists names only",
        "integration/client/test_client_exec_and_cp.py::test_available_options_are_listed",
    ),
    (
        "integration/client/test_client_exec_and_cp.py::test_prune_lists_existing_and_wanted_sandboxes",
        "`prune` is for operators, and counts existing and wanted sandboxes",
        "integration/client/test_client_exec_and_cp.py::test_sandbox_commands_print_its_state",
    ),
    (
        "integration/client/test_client_commands_live.py::test_reply_is_one_json_document",
        "each reply is one JSON document, and text without `-o json` (one herd for all commands)",
        "integration/client/test_client_commands_live.py::test_reply_is_one_json_document",
    ),
    (
        "integration/client/test_client_branches.py::test_show_tells_what_prevents_progress",
        "what prevents progress of a branch is shown; a branch is named in several ways (one herd for all)",
        "integration/client/test_client_branches.py::test_branch_is_named_in_several_ways",
    ),
    (
        "integration/client/test_client_closed.py::test_client_after_its_context_says_that_it_is_closed",
        "each use of a closed client says so (one herd for all)",
        "integration/client/test_client_closed.py::test_client_after_its_context_says_that_it_is_closed",
    ),
    (
        "integration/runtimes/test_runtimes_providers.py (exit codes and file names)",
        "each exit status is reported, and a file is written under any name (one sandbox for all)",
        "integration/runtimes/test_runtimes_providers.py::test_exit_status_of_a_command_is_reported",
    ),
)
"""Tests that were merged, or repeat less: the test, its claim or what it repeated, and where that is tested now."""
