"""The tests that `make test` leaves out and `make soak` runs, each with its claim and where `make test` shows it.

A test is left out if its claim is shown by a cheaper test: for another runtime, agent or service that shares the
mechanism, for one of several moments or signals, or below a whole stack. Other tests are marked `long` where they are
defined, with the reason there.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import pytest


@dataclass(frozen=True)
class LongRun:
    """Tests of one file, by name; `*` stands for any parameters."""

    file: str
    """Below `tests/`."""
    names: tuple[str, ...]
    claim: str
    shown_by: tuple[str, ...]
    """Tests that `make test` runs, as `file::function` below `tests/`."""

    def includes(self, nodeid: str) -> bool:
        """Whether this is one of the tests."""
        file, _, name = nodeid.partition("::")
        # In parameters, brackets are characters like others.
        return file == f"tests/{self.file}" and any(fnmatchcase(_plain(name), _plain(it)) for it in self.names)


def _plain(name: str) -> str:
    return name.replace("[", "<").replace("]", ">")


LONG_RUNS: Final[Sequence[LongRun]] = (
    LongRun(
        "drivers/claude/test_claude_sessions.py",
        (
            "test_session_resumes_from_its_transcript[resumed-after a turn]",
            "test_session_resumes_from_its_transcript[forked-after its end]",
        ),
        "a session is resumed and forked, from the transcript of a turn's end and of the session's",
        ("drivers/claude/test_claude_sessions.py::test_session_resumes_from_its_transcript",),
    ),
    LongRun(
        "drivers/claude/test_claude_sessions.py",
        ("test_sigterm_during_turn_ends_cleanly[a word and a SIGTERM]",),
        "SIGTERM after a request to stop ends a turn in order, as SIGTERM alone does",
        ("drivers/claude/test_claude_sessions.py::test_sigterm_during_turn_ends_cleanly",),
    ),
    LongRun(
        "drivers/claude/test_claude_failures.py",
        ("test_killed_program_ends_the_driver_with_its_signal[SIGTERM]",),
        "the signal that ended Claude's program is in the error; SIGKILL in `make test`",
        ("drivers/claude/test_claude_failures.py::test_killed_program_ends_the_driver_with_its_signal",),
    ),
    LongRun(
        "drivers/claude/test_claude_options.py",
        ("test_tool_is_allowed_by_pattern_or_denied[bypassPermissions]", "test_plan_mode_executes_nothing[ask]"),
        "the policy of tools holds in each permission mode",
        (
            "drivers/claude/test_claude_options.py::test_tool_is_allowed_by_pattern_or_denied",
            "drivers/claude/test_claude_approvals.py::test_approval_is_requested_in_every_permission_mode",
        ),
    ),
    LongRun(
        "drivers/acp/test_acp_agent_exit.py",
        ("test_stop_during_turn_ends_driver_and_agent[end of input]",),
        "an agent ends with its driver, however the driver is stopped",
        ("drivers/acp/test_acp_agent_exit.py::test_stop_during_turn_ends_driver_and_agent",),
    ),
    LongRun(
        "e2e/docker/test_docker_faults.py",
        ("test_engine_restart_during_a_task_is_recovered[in order]",),
        "a task outlives a restart of the Docker Engine; after a crash in `make test`",
        ("e2e/docker/test_docker_faults.py::test_engine_restart_during_a_task_is_recovered",),
    ),
    LongRun(
        "integration/stack/test_stack_backup.py",
        (
            "test_an_interrupted_backup_leaves_the_stack_running_and_no_folder[15]",
            "test_an_interrupted_backup_leaves_the_stack_running_and_no_folder[1]",
        ),
        "a backup that is interrupted by SIGTERM or SIGHUP starts the stack again; by SIGINT in `make test`",
        (
            "integration/stack/test_stack_backup.py::test_an_interrupted_backup_leaves_the_stack_running_and_no_folder",
            "unit/client/test_client_interruption.py::test_signal_cancels_the_work_and_its_handler_is_restored",
        ),
    ),
    LongRun(
        "faults/test_faults_combined.py",
        ("test_killing_three_workers_and_five_brokers_loses_no_event",),
        "no event is lost though workers and brokers are killed during one task; in `make test` one kill of each",
        (
            "faults/test_faults_kills.py::test_killing_each_component_loses_no_event",
            "faults/test_faults_kills.py::test_killing_a_worker_loses_no_published_event",
        ),
    ),
    LongRun(
        "faults/test_faults_kills.py",
        ("test_killing_a_component_loses_no_event[*]",),
        "no event is lost though one component is killed three times during a task; in `make test` each of them once",
        ("faults/test_faults_kills.py::test_killing_each_component_loses_no_event",),
    ),
    LongRun(
        "faults/test_faults_kills.py",
        (
            "test_killing_a_worker_loses_no_published_event[250]",
            "test_killing_a_worker_loses_no_published_event[1750]",
        ),
        "a killed worker loses no published event, early and late in a task; in `make test` in its middle",
        ("faults/test_faults_kills.py::test_killing_a_worker_loses_no_published_event",),
    ),
    LongRun(
        "e2e/test_demo.py",
        (
            "test_demo_shows_its_results",
            "test_ordinary_user_runs_the_demo[subordinate ids]",
        ),
        "the demo works for root and for a user with subordinate ids; in `make test` as in README, and for one without",
        (
            "e2e/test_demo.py::test_ordinary_user_runs_the_demo",
            "e2e/test_readme.py::test_shell_blocks_of_documents_succeed",
            "e2e/test_subordinate_uids.py::test_stopped_stack_leaves_only_files_of_the_user",
        ),
    ),
    LongRun(
        "e2e/test_line_claude.py",
        (
            "test_wrong_key_is_reported_as_refused",
            "test_unreachable_model_address_is_a_temporary_failure",
        ),
        "a wrong key and an unreachable model are reported by the whole line as by the driver",
        (
            "drivers/claude/test_claude_failures.py::test_error_of_the_models_server_fails_the_task",
            "drivers/claude/test_claude_failures.py::test_unreachable_model_address_is_a_temporary_failure",
            "e2e/test_line_claude.py::test_task_is_completed_after_a_rate_limit",
        ),
    ),
    LongRun(
        "e2e/test_line_claude.py",
        ("test_killed_program_has_one_end",),
        "a killed agent has one end and leaves no process; in `make test` with a whole worker, for each kind of agent",
        (
            "integration/worker/conformance/test_conformance_exit.py::test_killed_agent_has_one_end",
            "drivers/claude/test_claude_failures.py::test_killed_program_ends_the_driver_with_its_signal",
        ),
    ),
    LongRun(
        "e2e/kubernetes/test_kubernetes_line.py",
        (
            "test_evicted_pod_is_lost_and_retried",
            "test_oom_killed_agent_is_distinguished_from_a_failed_one",
        ),
        "eviction and OOM kills of pods reach the task; in `make test` the runtime reports them, Docker's line retries",
        (
            "integration/runtimes/test_runtimes_kubernetes_faults.py::test_evicted_pod_is_distinguished_from_an_oom_kill",
            "integration/runtimes/test_runtimes_providers.py::test_oom_kill_is_distinguished_from_a_failure",
            "e2e/docker/test_docker_faults.py::test_externally_removed_sandbox_is_lost_and_retried",
        ),
    ),
    LongRun(
        "integration/runtimes/test_runtimes_kubernetes_load.py",
        ("test_an_idle_sandbox_costs_no_request[sandbox]",),
        "an idle sandbox costs no request; in `make test` for pods, which have the same cache of watches",
        ("integration/runtimes/test_runtimes_kubernetes_load.py::test_an_idle_sandbox_costs_no_request",),
    ),
    LongRun(
        "integration/client/test_client_resume.py",
        ("test_session_of_self_storing_agent_is_loaded_by_id",),
        "a session that its agent stores is loaded, forked or refused; in `make test` by driver, worker and client",
        (
            "integration/worker/conformance/test_conformance_resume.py::test_task_resumes_an_earlier_session",
            "drivers/acp/test_acp_turns.py::test_session_is_forked_by_capable_agent",
            "drivers/acp/test_acp_agent_exit.py::test_session_that_cannot_be_resumed_fails_the_start",
            "unit/client/test_client_resume_source.py::test_session_of_self_storing_agent_is_its_last_id",
        ),
    ),
    LongRun(
        "integration/client/test_client_resume.py",
        ("test_running_session_is_forked_and_not_resumed",),
        "a running session is forked and not resumed; in `make test` by the decisions of client and spawner",
        (
            "unit/client/test_client_resume_source.py::test_running_task_is_only_forked",
            "unit/spawner/test_spawner_resume.py::test_running_task_may_only_be_forked",
            "unit/spawner/test_spawner_resume.py::test_lingering_agent_counts_as_running",
        ),
    ),
    LongRun(
        "integration/spawner/test_spawner_replicas.py",
        (
            "test_suspended_replica_cannot_act[7]",
            "test_suspended_replica_cannot_act[15]",
        ),
        "a replica that was suspended at any act is fenced when it continues; in `make test` at the most dangerous one",
        ("integration/spawner/test_spawner_replicas.py::test_suspended_replica_cannot_act",),
    ),
    LongRun(
        "integration/spawner/test_spawner_subordinate.py",
        ("test_sandboxes_with_the_users_uid_stay_managed[refused]",),
        "sandboxes with the user's uid stay managed, also where the range is refused; in `make test` without a range",
        ("integration/spawner/test_spawner_subordinate.py::test_sandboxes_with_the_users_uid_stay_managed",),
    ),
    LongRun(
        "integration/spawner/test_run_lifetime.py",
        ("test_interrupted_run_leaves_nothing[SIGTERM]",),
        "an interrupted test run leaves nothing; in `make test` by SIGINT, and the controller treats both alike",
        ("integration/spawner/test_run_lifetime.py::test_interrupted_run_leaves_nothing",),
    ),
    LongRun(
        "integration/runtimes/test_runtimes_contract.py",
        (
            "test_sandbox_created_twice_is_one[daytona]",
            "test_sandbox_created_twice_is_one[kubernetes]",
            "test_interrupted_creation_is_completed_once[daytona]",
            "test_interrupted_creation_is_completed_once[kubernetes]",
            "test_exit_status_of_a_command_is_reported[daytona]",
            "test_exit_status_of_a_command_is_reported[kubernetes]",
            "test_command_has_its_folder_and_variables[daytona]",
            "test_command_has_its_folder_and_variables[kubernetes]",
            "test_command_over_its_time_is_ended[daytona]",
            "test_command_over_its_time_is_ended[kubernetes]",
            "test_output_is_limited_to_its_bound[daytona]",
            "test_output_is_limited_to_its_bound[kubernetes]",
            "test_file_is_written_and_read_unchanged[daytona]",
            "test_file_is_written_and_read_unchanged[kubernetes]",
            "test_unreadable_files_are_refused[daytona]",
            "test_unreadable_files_are_refused[kubernetes]",
            "test_removed_sandbox_is_not_found[daytona]",
            "test_removed_sandbox_is_not_found[kubernetes]",
            "test_sandbox_is_paused_and_resumed_or_that_is_refused[daytona]",
            "test_sandbox_is_paused_and_resumed_or_that_is_refused[kubernetes]",
        ),
        "each provider's whole runtime; in `make test` its provider, and the runtime of all with two others",
        (
            "integration/runtimes/test_runtimes_providers.py::test_sandbox_created_twice_is_one",
            "integration/runtimes/test_runtimes_providers.py::test_interrupted_creation_is_completed",
            "integration/runtimes/test_runtimes_providers.py::test_program_has_its_files_and_variables",
            "integration/runtimes/test_runtimes_providers.py::test_exit_status_of_a_command_is_reported",
            "integration/runtimes/test_runtimes_providers.py::test_command_over_its_time_is_ended",
            "integration/runtimes/test_runtimes_providers.py::test_output_is_limited_to_its_bound",
            "integration/runtimes/test_runtimes_providers.py::test_file_is_written_and_read_unchanged",
            "integration/runtimes/test_runtimes_providers.py::test_unreadable_files_are_refused",
            "integration/runtimes/test_runtimes_providers.py::test_removed_sandbox_is_not_found",
            "integration/runtimes/test_runtimes_providers.py::test_sandbox_is_paused_and_resumed",
            "integration/runtimes/test_runtimes_contract.py::test_sandbox_created_twice_is_one",
        ),
    ),
    LongRun(
        "integration/runtimes/test_runtimes_contract.py",
        (
            "test_task_runs_from_submission_to_its_diff[daytona]",
            "test_task_runs_from_submission_to_its_diff[kubernetes]",
            "test_task_runs_from_submission_to_its_diff[remote]",
        ),
        "a task runs from its submission to its diff; in `make test` by the line of each provider",
        (
            "integration/runtimes/test_runtimes_daytona_line.py::test_task_runs_from_submission_to_its_diff",
            "e2e/kubernetes/test_kubernetes_line.py::test_task_runs_from_submission_to_its_diff",
            "integration/runtimes/test_runtimes_remote_line.py::test_task_runs_from_submission_to_its_diff",
        ),
    ),
    LongRun(
        "integration/runtimes/test_runtimes_agent_server.py",
        (
            "test_agent_server_is_reached_wherever_its_sandbox_is[daytona]",
            "test_agent_server_is_reached_wherever_its_sandbox_is[kubernetes]",
        ),
        "an agent's server is reached in each runtime; in `make test` in one, and a port of a sandbox in each",
        (
            "integration/runtimes/test_runtimes_agent_server.py::test_agent_server_is_reached_wherever_its_sandbox_is",
            "integration/runtimes/test_runtimes_contract.py::test_port_of_a_sandbox_is_reached_with_its_headers",
        ),
    ),
    LongRun(
        "integration/runtimes/test_runtimes_daytona_line.py",
        ("test_lost_worker_is_recovered",),
        "a lost worker is recovered at Daytona; in `make test` in the remote runtime, and Daytona restarts boxes",
        (
            "integration/runtimes/test_runtimes_remote_line.py::test_lost_worker_is_recovered",
            "integration/runtimes/test_runtimes_providers.py::test_stopped_sandbox_is_restarted_with_its_files",
        ),
    ),
    LongRun(
        "e2e/kubernetes/test_kubernetes_line.py",
        (
            "test_killed_pod_is_recovered",
            "test_cancelled_task_leaves_no_pod",
        ),
        "a killed pod is recovered, a cancelled task leaves none; in `make test` by the provider, and by Docker",
        (
            "e2e/docker/test_docker_faults.py::test_killed_container_is_recovered",
            "integration/runtimes/test_runtimes_providers.py::test_stopped_sandbox_is_restarted_with_its_files",
            "integration/runtimes/test_runtimes_providers.py::test_removed_sandbox_is_not_found",
            "integration/client/test_client_real_line.py::test_cancelled_task_ends_as_cancelled",
        ),
    ),
    LongRun(
        "e2e/docker/test_docker_down.py",
        ("test_container_that_outlives_its_stack_is_adopted",),
        "the next spawner adopts a running container; in `make test` processes, and Docker's runtime finds its own",
        (
            "e2e/test_subordinate_uids.py::test_restarted_spawner_adopts_its_sandboxes",
            "integration/runtimes/test_runtimes_contract.py::test_sandboxes_are_found_by_their_own_herd_only",
        ),
    ),
    LongRun(
        "e2e/test_line_claude.py",
        ("test_approvals_of_claude_are_granted_and_denied",),
        "approvals of Claude pass the line; in `make test` those of an ACP agent do, and the driver requests them",
        (
            "e2e/test_line_acp.py::test_acp_agent_is_approved_messaged_and_ended",
            "drivers/claude/test_claude_approvals.py::test_approval_is_requested_in_every_permission_mode",
        ),
    ),
    LongRun(
        "integration/stack/test_stack_backup.py",
        ("test_a_stack_of_three_servers_is_restored_with_three_or_with_one",),
        "a stack of three servers is restored with three or one; in `make test` a broker of three, and a stack of one",
        (
            "integration/operating/test_backup_cluster.py::test_backup_is_restored_on_three_servers",
            "integration/stack/test_stack_backup.py::test_a_stack_is_backed_up_while_an_agent_works_and_restored_to_a_new_home",
        ),
    ),
    LongRun(
        "integration/spawner/test_spawner_client_floods.py",
        ("test_flooding_client_is_disconnected_and_other_projects_continue[json]",),
        "a client that floods is disconnected, whatever it sends; in `make test` with messages of one byte",
        (
            "integration/spawner/test_spawner_client_floods.py::test_flooding_client_is_disconnected_and_other_projects_continue",
        ),
    ),
    LongRun(
        "integration/spawner/test_spawner_crashes.py",
        ("test_files_of_a_dependency_are_taken_under_repeated_kills",),
        "a dependant gets its files under kills of spawners; in `make test` without, and other tasks end under kills",
        (
            "integration/spawner/test_spawner_crashes.py::test_tasks_end_correctly_under_repeated_kills",
            "integration/client/test_client_inputs.py::test_task_of_a_file_reads_what_another_has_left",
        ),
    ),
)

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


def mark_long_runs(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of `LONG_RUNS` as `long`."""
    by_file: defaultdict[str, list[LongRun]] = defaultdict(list)
    for run in LONG_RUNS:
        by_file[f"tests/{run.file}"].append(run)
    for item in items:
        runs = by_file.get(item.nodeid.partition("::")[0], ())
        if any(run.includes(item.nodeid) for run in runs):
            item.add_marker(pytest.mark.long)
