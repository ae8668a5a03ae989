"""The log messages of the spawner and of its runtimes: part of `telemetry.messages`."""

from typing import Final

from sandherd.telemetry.log_message import CHECK_BROKER, REPORT, LogMessage
from sandherd.telemetry.log_message import error as _error
from sandherd.telemetry.log_message import info as _info
from sandherd.telemetry.log_message import warning as _warning

_RUNTIME: Final = "Check the runtime's engine, cluster or account."
_HOST: Final = "`sandherd doctor` names what the host lacks."
_FULL: Final = "See the runbook SandherdStreamFull."

SPAWNER_MESSAGES: Final[dict[str, tuple[LogMessage, ...]]] = {
    "spawner": (
        _info("lease lost to another replica", "Another replica does this part of the work."),
        _warning("projects over budget not read, retrying", "The list that was read last is used.", CHECK_BROKER),
        _warning("scheduling failed, retrying", "Queued tasks start later.", CHECK_BROKER),
        _error("task not started, retrying", "One task failed to start with an unexpected error.", REPORT),
        _warning("checkout not prepared, retrying", "A task with a repository starts later.", CHECK_BROKER),
        _warning(
            "repository not available, retrying",
            "A task with a repository starts later; `sandherd tasks get` shows why.",
            "Check the repository's host and the credential.",
        ),
        _info(
            "git proxy request not completed",
            "The sandbox closed the connection, or the forge sent only a part of its response.",
        ),
        _warning(
            "git proxy refused requests",
            "`requests` is the number since the last such line; `sandbox` is the name in the request's path, or empty.",
            "See the runbook SandherdGitProxyRefuses if it goes on.",
        ),
        _warning(
            "branch not handled, retrying",
            "A step is done later: to add commits, to push a branch, or to open, poll or merge a pull request.",
            "Check the repository's host and the credential.",
        ),
        _info("credential of a forge found", "The spawner starts with it; a token that is stored later is used, too."),
        _info(
            "mirror initialized from that of another project",
            "Only what that mirror lacks is fetched from the repository (SANDHERD_SHARE_MIRRORS).",
        ),
        _info(
            "mirror of another project unusable, fetching everything",
            "All is fetched from the repository; `error` states why.",
        ),
        _info("mirror removed", "No live branch needs the mirror. The repository is fetched again when it is needed."),
        _warning("mirror not repacked", "The mirror uses more disk than it needs, until the next day."),
        _warning(
            "mirrors not checked, retrying", "Mirrors that are not needed stay for ten more minutes.", CHECK_BROKER
        ),
        _error("check of mirrors failed, retrying", "A pass over the mirrors failed with an unexpected error.", REPORT),
        _warning("branches not compared", "It is unknown whether a branch conflicts with other branches."),
        _error("checkout preparation failed, retrying", "One checkout failed with an unexpected error.", REPORT),
        _error(
            "branch step failed, retrying",
            "One step of a branch or its pull request failed with an unexpected error.",
            REPORT,
        ),
        _warning(
            "events of ended sandboxes not checked, retrying",
            "It is unknown whether all their events were handled, so their branches stay reserved for a while.",
            CHECK_BROKER,
        ),
        _warning("time limits not checked, retrying", "Time limits are enforced later.", CHECK_BROKER),
        _error("dependencies of task unreadable", "The task waits.", "Cancel the task and submit it again."),
        _info("command rejected", "A command about a sandbox; the event `sandbox.refused` has the reason."),
        _info("late event ignored", "An event of an attempt that had ended changed nothing."),
        _info("agent shut down", "The worker published its last event."),
        _warning("transition refused", "An event does not apply to the record's state; the record is unchanged."),
        _warning("event not published, stays in outbox", "The stream is full. The event is published later.", _FULL),
        _info("outbox not cleared, retrying", "Published events are still in the record that caused them."),
        _error("record unreadable", "An invalid record is ignored.", "Restore it, or delete its key."),
        _warning("watch failed, restarting", "The index of records is read again.", CHECK_BROKER),
        _info("record not deleted", "The next sweep deletes the record."),
        _warning("encryption key not erased, retrying", "The key of a deleted secret still exists.", CHECK_BROKER),
        _info("unused encryption key erased", "No record referred to the key."),
        _warning("warm sandbox ended", "A sandbox of the pool ended before it was used.", _RUNTIME),
        _warning("warm sandbox not started", "The pool has fewer sandboxes than configured.", _RUNTIME),
        _info("scheduled task started", "A schedule was due, or was triggered."),
        _warning(
            "scheduled task not started",
            "A due time was skipped or missed, or the task was refused.",
            "See `sandherd schedules show`.",
        ),
        _warning("schedules not evaluated, retrying", "Tasks of schedules start later.", CHECK_BROKER),
        _error("schedule not evaluated, retrying", "One schedule failed with an unexpected error.", REPORT),
        _warning("pool not filled, retrying", "The pool has fewer sandboxes than configured.", CHECK_BROKER),
        _warning("sandbox not created, retrying", "The runtime refused temporarily.", _RUNTIME),
        _error("sandbox not created", "The runtime refused permanently; the attempt has failed.", _RUNTIME),
        _warning("recovering sandbox", "A worker ended before it had published all events; another one is started."),
        _warning("sandbox lost", "A sandbox no longer exists; its task is retried if its policy allows."),
        _error(
            "sandbox ended with undelivered events",
            "The sandbox is quarantined. The spawner retries to publish its events.",
            _RUNTIME,
        ),
        _error("sandbox unchanged after a step, retrying", "The runtime did not do what it confirmed.", _RUNTIME),
        _warning("sandbox not reconciled, retrying at next sweep", "The runtime or the broker failed.", _RUNTIME),
        _error("sandbox not reconciled", "An unexpected error was raised. The next sweep tries again.", REPORT),
        _warning("sweep not completed, retrying", "The next sweep repeats all steps.", CHECK_BROKER),
        _warning("sweep step failed, retrying at next sweep", "The runtime or the broker failed.", _RUNTIME),
        _error("sweep step failed", "An unexpected error was raised. The next sweep tries again.", REPORT),
        LogMessage("debug", "task purged", "The record of an ended task was deleted after its retention."),
        LogMessage("debug", "sandbox purged", "The record of an ended sandbox was deleted after its retention."),
        _warning("sandboxes of runtime not listed", "The runtime does not respond.", _RUNTIME),
        _error("listing sandboxes of runtime failed", "The runtime raised an unexpected error.", REPORT),
        _warning("orphaned sandbox found", "The runtime has a sandbox without a record. The sandbox is removed."),
        _error("orphaned sandbox not removed, retrying at next sweep", "The runtime failed.", _RUNTIME),
        _warning("sandbox with undelivered events quarantined", "The sandbox is stopped; its data remains."),
        _info("retrying unpublished events of quarantined sandbox", "A worker is started to publish its events."),
        _warning("unexpected quarantined sandbox removed", "All events of the sandbox had already been delivered."),
        _error("quarantined sandbox not removed, retrying at next sweep", "The runtime failed.", _RUNTIME),
        _warning("request for credential refused", "`why` has the reason.", "Watch the sandbox: it may be an attack."),
        _warning("sandbox requests credentials for too many keys", "The requests are refused.", "End the sandbox."),
        _error(
            "flood guard disabled: run `sandherd identity init` again",
            "A credential is missing: sandboxes that flood the broker are not disconnected.",
            "Run the command.",
        ),
        _error("flooding sandbox disconnected", "The sandbox exceeded a limit, and is ended.", "Read its events."),
        _warning("flooding sandbox not disconnected, retrying", "The broker did not respond.", CHECK_BROKER),
        _error(
            "credential of a user revoked",
            "The user repeatedly had more connections than SANDHERD_PERSON_CONNECTIONS.",
            "Find the program that opens them, and create another credential: `sandherd credentials create`.",
        ),
        _warning("credential of a user not revoked, retrying", "The broker did not respond.", CHECK_BROKER),
        _warning(
            "accounts not pushed to the broker, retrying", "The broker did not respond at the start.", CHECK_BROKER
        ),
        _error(
            "users' credentials can not be revoked: run `sandherd identity init` again",
            "The spawner's keys are of an earlier version. Excess connections are only closed.",
            "Run the command, and give the spawner the files of `identity/spawner`.",
        ),
        _warning(
            "flooding clients disconnected",
            "Clients of a project publish too much, or its waiting commands use too much space.",
            "Find the program that publishes them.",
        ),
        _warning("connections not listed, retrying", "Until then no flood is detected.", CHECK_BROKER),
        _warning(
            "pending commands not measured, retrying", "Projects above their share are not detected.", CHECK_BROKER
        ),
    ),
    "runtimes of the spawner": (
        _info("process runtime enabled", "The fields show the isolation and the limits that this host supports."),
        _info("docker runtime enabled", "The fields show the engine and the image."),
        _info(
            "docker mounts no repositories",
            "Containers can't mount the spawner's home, for the reason in `error`; repositories are sent as bundles.",
        ),
        _info("kubernetes runtime enabled", "The fields show the cluster and the namespace."),
        _info("daytona runtime enabled", "The fields show the target and the source."),
        _info("remote runtime enabled", "The fields show the address and the image."),
        _error("runtime plugin unusable", "Sandboxes of this runtime can't be started.", "Install a suitable version."),
        _error("sandbox isolation unavailable, refusing to start sandboxes", "`reason` has the cause.", _HOST),
        _error("sandbox network unavailable, refusing to start sandboxes", "`reason` has the cause.", _HOST),
        _warning(
            "sandboxes are not isolated from the host: SANDHERD_ISOLATION=none", "Agents can do what the spawner can."
        ),
        _warning(
            "sandbox starts with weaker isolation", "The settings allow this; `reason` has what is missing.", _HOST
        ),
        _warning("sandbox shares this host's network", "The settings allow this. It reaches what the host reaches."),
        _warning("sandbox disk usage is not limited", "An agent can fill the disk.", "Set `SANDHERD_SANDBOX_DISK_MB`."),
        _warning(
            "fork server failed, processes are started by exec",
            "Sandboxes start more slowly, and need more memory.",
            _HOST,
        ),
        _warning("subordinate uids not used", "Sandboxes run with the spawner's uid.", _HOST),
        _info("worker modules not compiled, sandboxes start more slowly", "`error` has the reason."),
        _info("removing file system of missing sandbox", "The directory of the sandbox no longer exists."),
        _warning("file system of sandbox not mounted", "The sandbox can't be read or started.", _HOST),
        _warning("pod did not start, removing it", "The cluster could not run it; `why` has the reason.", _RUNTIME),
        _warning("pod not removed", "The pod did not start. Its removal is retried.", _RUNTIME),
        _info("exit reason of a stopped worker unknown", "The runtime of the sandbox did not respond."),
        _warning("sandbox not responding, stopping it", "The provider can't reach the sandbox.", _RUNTIME),
        _warning(
            "provider change stream interrupted, restarting", "Until then changes are found by listing.", _RUNTIME
        ),
        _error("provider change stream failed, restarting", "An unexpected error was raised.", REPORT),
        _info("sandbox stopped", "`spawner.sandbox_shutdown` stops sandboxes at the end of the stack."),
        _error("sandbox not stopped", "`spawner.sandbox_shutdown` stops sandboxes at the end of the stack.", _RUNTIME),
    ),
}
