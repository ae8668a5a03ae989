"""The table of all log messages: level, text and meaning. The text is the field `event` of a log line.

The texts are constants, so operators can search for them and alert on them. A call contains the text as a literal, so a
search finds it in the code as well; a test compares the calls with this table in both directions. Services don't import
this module.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LogMessage:
    """One row of the table. `fix`: what an operator does about it; empty if nothing has to be done."""

    level: str
    text: str
    meaning: str
    fix: str = ""


def _info(text: str, meaning: str) -> LogMessage:
    return LogMessage("info", text, meaning)


def _warning(text: str, meaning: str, fix: str = "") -> LogMessage:
    return LogMessage("warning", text, meaning, fix)


def _error(text: str, meaning: str, fix: str) -> LogMessage:
    return LogMessage("error", text, meaning, fix)


_BROKER: Final = "Check the broker with `sandherd doctor`."
_RUNTIME: Final = "Check the runtime's engine, cluster or account."
_REPORT: Final = "Report it with the traceback: it is a defect."
_HOST: Final = "`sandherd doctor` names what the host lacks."
_DEAD: Final = "Inspect it with `sandherd dead list`."
_HISTORY: Final = "Do what `sandherd history status` says."
_DISK: Final = "Free space on the broker's disk."

MESSAGES: Final[dict[str, tuple[LogMessage, ...]]] = {
    "every service": (
        _info("service running", "The service handles messages."),
        _info("service stopping", "The service received a signal and ends."),
        _error("part of the service failed", "The service ends, because a part of it failed.", _REPORT),
        _error("request handler failed", "A request got an error reply with the code `internal`.", _REPORT),
        _error("handler failed", "A message could not be handled; `outcome` is what happens to it.", _REPORT),
        _warning("reply not sent", "The requester does not receive its reply and can repeat the request."),
        _warning("requests refused, too many of one source", "They get `busy`.", "See who publishes most: `doctor`."),
        _warning("limit of open files not raised", "The service can serve fewer connections.", "Raise `ulimit -n`."),
        _warning("message not acknowledged, retrying", "The broker did not confirm a message in time.", _BROKER),
        _warning("delivery not acknowledged", "The broker will redeliver a message that was handled."),
        _info("broker connection restored", "The client reconnected to the broker."),
        _warning("broker not reachable, retrying", "The first connection to the broker failed.", _BROKER),
        _warning("certificate files not reloaded", "The old ones are used.", "Check NATS_CA, NATS_CERT and NATS_KEY."),
        _warning("broker connection error", "The client library reported an error and continues.", _BROKER),
        _warning(
            "received messages dropped, queue full",
            "More messages of a kind arrived than this process handles; requesters repeat theirs.",
            "See which sandbox or client publishes most: `sandherd doctor`.",
        ),
        _error("broker denied permission", "No right to a subject, or a late reply (`_R_…`).", "Renew credentials."),
        _error("broker connection closed permanently", "It refused further connections; the process ends.", _BROKER),
        _warning("connection not drained, closing", "Messages in transit at the end are redelivered."),
        _warning("connection not closed, aborting", "The broker did not receive what was already written to it."),
        _info("connection lost during close", "Messages in transit at the end are redelivered."),
        _error("consumer not responding, rebinding", "No message and no heartbeat came; it is bound anew.", _BROKER),
        _error("consumers not created, retrying", "No message is handled until they exist.", _BROKER),
        _warning("message stored as dead letter", "A message could not be handled and was stored.", _DEAD),
        _error("dead letters dropped", "One source caused too many; they were only counted.", "End its sandbox."),
        _warning("dead letter summary not stored", "The count of dropped dead letters was not stored.", _BROKER),
        _info("dead letter requeued", "A dead letter is handled again; `user` has requested it."),
        _warning("requeued dead letter failed again", "It was stored as a dead letter again.", _DEAD),
        _error(
            "command with secrets not erased",
            "A handled command with secrets is still in its stream, encrypted.",
            "It expires with the stream; rotate the secrets if the stream was copied.",
        ),
        _info("lease acquired", "This replica now does the work that only one replica may do at a time."),
        _warning("lease lost", "Another replica takes over.", _BROKER),
        _info("lease not released, it will expire", "Another replica takes over once the lease has expired."),
        _error("storage is exhausted", "The broker does not store messages; `problem` names the cause.", _DISK),
        _info("storage available again", "The broker stores messages again."),
        _warning("purge refused", "Events that a consumer has not acknowledged are not removed.", "Wait, then repeat."),
        _info("exporting traces and metrics", "A collector is configured."),
        _info("collector accepts exports again", "Exports continue."),
        _warning("collector does not accept exports, continuing without it", "Exports are dropped.", "Check it."),
        _warning("metrics export failed", "Metrics of one interval were not exported.", "Check the collector."),
    ),
    "event-ingest": (
        _info("database available", "Events are stored again."),
        _info("database unavailable", "Events wait in the stream until Postgres is available."),
        _warning("database error, checking again", "A check of Postgres failed.", "Check Postgres."),
        _warning("batch not stored, waiting for database", "The batch is stored later.", "Check Postgres."),
        _info("migration applied", "The database schema was changed."),
        _info("partitions created", "Partitions for the next days exist."),
        _info("partition index created", "A partition has an index that this version needs."),
        _warning("partition index not created, retrying", "Queries that need it are slow.", "Check Postgres."),
        _info("autovacuum settings of partition changed", "A partition has the settings for rows that never change."),
        _info("day of the history dropped", "Its events are older than `history_days`, and not held."),
        _warning(
            "day of the history not dropped, retrying",
            "Long statements used the history, or another replica drops the day. It is retried a minute later.",
            "If it repeats, look for long transactions in Postgres.",
        ),
        _info("day of the history archived", "Its events are in files that were read back and compared."),
        _error("day of the history not archived, retrying", "It is not dropped. The status has the cause.", _HISTORY),
        _info("day of the history restored", "Its events are in the history again, for a limited time."),
        _error("day of the history not restored", "A file of the archive is missing or wrong.", _HISTORY),
        _warning("restore failed, retrying", "The restore of a day continues later.", "Check Postgres."),
        _info("events without a partition deleted", "They were stored longer than `history_days` ago."),
        _warning("retention failed, retrying", "Days that are due are dropped later.", "Check Postgres."),
        _warning("stream purged", "The oldest messages were removed as the stream was full.", "Raise its limit."),
        _warning("purging oldest artifacts of sandbox", "One sandbox uses too much of the stream.", "End the sandbox."),
        _info("lease lost, purging stopped", "Another replica purges."),
        _warning("purge failed, retrying", "A full stream was not purged.", _BROKER),
        _warning("subscriptions not measured, retrying", "Their lag is not current.", "Check broker and Postgres."),
        _warning("subscription expires soon", "It has no reader.", "Inform its team, or delete it."),
    ),
    "message-relay": (
        _info("approval requested again", "A restarted agent repeated a request."),
        _warning("invalid bucket entry ignored", "An entry of a bucket is invalid.", "Delete the entry."),
        _warning("bucket unavailable, retrying", "Messages and approvals are delivered later.", _BROKER),
        _warning("last event not read, retrying", "The stream did not respond.", _BROKER),
        _warning("lease lost, delivery stopped", "Another replica delivers."),
        _warning("sandboxes with waiting messages not listed", "Waiting messages are delivered later.", _BROKER),
        _warning("inbox unavailable", "Messages of one sandbox are delivered later.", _BROKER),
        _info("message already deleted", "Another replica has deleted it."),
        _warning("invalid receipt from worker", "The message is delivered again.", "End the sandbox if it repeats."),
        _warning("secret of a webhook not read, retrying", "Its events are sent later.", "Rotate it if it repeats."),
        _warning("events for a webhook not read, retrying", "They are sent later.", _BROKER),
        _warning("webhooks not read, retrying", "Changes of webhooks take effect later.", _BROKER),
        _warning("event of a webhook given up", "It is a dead letter.", "Run `webhooks replay NAME --dead-letters`."),
        _warning("events of a webhook dropped by the stream", "They are not sent.", "Inform its owner: it is behind."),
        _warning("webhook disabled", "Its receiver accepts nothing.", "Inform its owner, who can resume it."),
        _error("delivery of a webhook failed, retrying", "It is retried after 30 s.", _REPORT),
    ),
    "gateway": (
        _info("serving the HTTP API", "The API accepts requests, at `http_port`."),
        _warning("events not read, retrying", "Streams of events of one project wait.", _BROKER),
        _warning(
            "sign-in refused",
            "By an OpenID provider, for the reason in `reason`: none of its users, no groups of the "
            "settings, a response to another sign-in, or no response.",
            "See `error`, and docs/gateway.md.",
        ),
        _error("request to the API failed", "The gateway replied with status 500.", "Report it."),
    ),
    "monitor": (
        _info("snapshot restored", "The monitor continues at the snapshot's position."),
        _warning("snapshot unusable, reading the stream from its first event", "The state is computed again."),
        _warning("snapshot not saved", "A restart will read more events.", _BROKER),
        _warning("snapshot unavailable, retrying", "The monitor waits for its snapshot.", _BROKER),
        _info("budget reached", "80 % or 100 % of the budget in `limit` are used."),
        _info("budget exceeded, ending sandbox", "The agent did not end by itself in time."),
        _info("lease lost, budget checks stopped", "Another replica enforces the budgets."),
        _warning("budgets not checked, retrying", "Budgets are enforced later.", _BROKER),
        _error(
            "budgets of a project not checked, retrying",
            "Its ledger can't be written, or is invalid. Other projects are checked; a blocked one stays blocked.",
            "Report `error` as a bug, unless the bucket `budgets` is full.",
        ),
        _warning("bucket not read, retrying", "Budgets are enforced later.", _BROKER),
        _error("entry of budgets unreadable", "A newer version wrote the entry in `key`.", "Upgrade the monitor."),
        _warning("summaries not written, retrying", "Budgets and reports lag behind the events.", _BROKER),
        _warning(
            "events after the snapshot are no longer in the stream", "The monitor has not seen them.", "Raise `EVENTS`."
        ),
        _warning("state of a rule in the snapshot discarded", "After an upgrade: its state is empty again."),
        _error("rule failed, disabled for the sandbox", "It raised the error in `reason`.", "Report it."),
        _info("rule found a problem", "The monitor ends the sandbox by the rule in `rule`."),
        _info("pattern found in an agent's behaviour", "A guardian rule found it; `step` is what is done about it."),
        _info("decision already stored, not repeated", "It was stored by another replica, or before a restart."),
        _warning("events for the assessment unavailable", "A finding is not assessed.", "Check event-ingest."),
        _info("rule muted", "A user has muted a guardian rule for a sandbox."),
        _info("rule unmuted", "A muted rule is evaluated again."),
        _warning("lease lost, watch stopped", "Another replica watches the partition."),
        _warning("leases not read, retrying", "The replica keeps its partitions until their leases expire.", _BROKER),
        _info("snapshot for a different number of partitions deleted", "Each partition has a snapshot of its own now."),
        _warning("sandbox record unreadable, finding not acted upon", "The rule is evaluated again.", _BROKER),
        _warning("stream not responding, reading again", "The monitor reads at its last position.", _BROKER),
        _warning("lease lost, conductor stopped", "Another replica compares sandboxes."),
        _warning("conductor record not stored, reading all records again", "Another one may have stored it.", _BROKER),
        _warning(
            "conductor record unreadable, starting with an empty one",
            "Findings of that project may be published again.",
        ),
        _warning("broker not responding, sandboxes not compared", "They are compared a little later.", _BROKER),
        _warning("summary unreadable, ignored", "The sandbox of this summary is not compared with others."),
        _warning("broker not responding, rules not evaluated", "Whether workers are silent is unknown.", _BROKER),
    ),
    "spawner": (
        _info("lease lost to another replica", "Another replica does this part of the work."),
        _warning("projects over budget not read, retrying", "The list that was read last is used.", _BROKER),
        _warning("scheduling failed, retrying", "Queued tasks start later.", _BROKER),
        _error("task not started, retrying", "One task failed to start by an unexpected error.", _REPORT),
        _warning("checkout not prepared, retrying", "A task with a repository starts later.", _BROKER),
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
            "`requests` of them since the last line; `sandbox` is the name in the request's path, or empty.",
            "See the runbook SandherdGitProxyRefuses if it goes on.",
        ),
        _warning(
            "branch not handled, retrying",
            "Commits are added, a branch is pushed, or a pull request is opened, followed or merged, later.",
            "Check the repository's host and the credential.",
        ),
        _info("credential of a forge found", "The spawner starts with it; a token that is stored later is used, too."),
        _info(
            "mirror initialized from that of another project",
            "The rest is fetched from the repository (SANDHERD_SHARE_MIRRORS).",
        ),
        _info(
            "mirror of another project unusable, fetching everything",
            "All is fetched from the repository; `error` states why.",
        ),
        _info("mirror removed", "No live branch needed the mirror of a repository; it is fetched again when one does."),
        _warning("mirror not repacked", "It uses more disk than it needs, until the next day."),
        _warning("mirrors not checked, retrying", "Mirrors that are not needed stay for ten more minutes.", _BROKER),
        _error("check of mirrors failed, retrying", "A pass over the mirrors failed by an unexpected error.", _REPORT),
        _warning("branches not compared", "Whether a branch conflicts with others is unknown."),
        _error("checkout preparation failed, retrying", "One checkout failed by an unexpected error.", _REPORT),
        _error(
            "branch step failed, retrying",
            "One step of a branch or its pull request failed by an unexpected error.",
            _REPORT,
        ),
        _warning("events of ended sandboxes not checked, retrying", "Their branches stay reserved.", _BROKER),
        _warning("time limits not checked, retrying", "Time limits are enforced later.", _BROKER),
        _error("dependencies of task unreadable", "The task waits.", "Cancel the task and submit it again."),
        _info("command rejected", "A command does not apply; the event `sandbox.refused` has the reason."),
        _info("late event ignored", "An event of an attempt that had ended changed nothing."),
        _info("agent shut down", "The worker published its last event."),
        _warning("transition refused", "An event does not apply to the record's state; the record is unchanged."),
        _warning(
            "event not published, stays in outbox", "The stream is full; the event stays in the record's outbox.", _DISK
        ),
        _error("record unreadable", "An invalid record is ignored.", "Restore it, or delete its key."),
        _warning("watch failed, restarting", "The index of records is read again.", _BROKER),
        _info("record not deleted", "It is deleted at the next sweep."),
        _warning("encryption key not erased, retrying", "The key of a deleted secret still exists.", _BROKER),
        _info("unused encryption key erased", "No record referred to the key."),
        _warning("warm sandbox ended", "A sandbox of the pool ended before it was used.", _RUNTIME),
        _warning("warm sandbox not started", "The pool has fewer sandboxes than configured.", _RUNTIME),
        _info("scheduled task started", "A schedule was due, or was triggered."),
        _warning(
            "scheduled task not started",
            "A due time was skipped or missed, or the task was refused.",
            "See `sandherd schedules show`.",
        ),
        _warning("schedules not evaluated, retrying", "Tasks of schedules start later.", _BROKER),
        _error("schedule not evaluated, retrying", "One schedule failed by an unexpected error.", _REPORT),
        _warning("pool not filled, retrying", "The pool has fewer sandboxes than configured.", _BROKER),
        _warning("sandbox not created, retrying", "The runtime refused for now; the spawner retries.", _RUNTIME),
        _error("sandbox not created", "The runtime refused; the attempt has failed.", _RUNTIME),
        _warning("recovering sandbox", "A sandbox whose worker ended is started again for its events."),
        _warning("sandbox lost", "A sandbox no longer exists; its task is retried if its policy allows."),
        _error("sandbox ended with undelivered events", "Events were lost with it.", _RUNTIME),
        _error("sandbox unchanged after a step, retrying", "The runtime did not do what it confirmed.", _RUNTIME),
        _warning("sandbox not reconciled, retrying at next sweep", "The runtime or the broker failed.", _RUNTIME),
        _error("sandbox not reconciled", "An unexpected error; retried at the next sweep.", _REPORT),
        _warning("sweep not completed, retrying", "The next one repeats it.", _BROKER),
        _warning("sweep step failed, retrying at next sweep", "The runtime or the broker failed.", _RUNTIME),
        _error("sweep step failed", "An unexpected error; retried at the next sweep.", _REPORT),
        LogMessage("debug", "task purged", "The record of an ended task was deleted after its retention."),
        LogMessage("debug", "sandbox purged", "The record of an ended sandbox was deleted after its retention."),
        _warning("sandboxes of runtime not listed", "The runtime does not respond.", _RUNTIME),
        _error("listing sandboxes of runtime failed", "An unexpected error of the runtime.", _REPORT),
        _warning("orphaned sandbox found", "A sandbox without record; it is removed."),
        _error("orphaned sandbox not removed, retrying at next sweep", "The runtime failed.", _RUNTIME),
        _warning("sandbox with undelivered events quarantined", "It is stopped; its data remains."),
        _info("retrying unpublished events of quarantined sandbox", "It is started only to publish its events."),
        _warning("unexpected quarantined sandbox removed", "Its events were delivered before."),
        _error("quarantined sandbox not removed, retrying at next sweep", "The runtime failed.", _RUNTIME),
        _warning("request for credential refused", "`why` has the reason.", "Watch the sandbox: it may be an attack."),
        _warning("sandbox requests credentials for too many keys", "They are refused.", "End the sandbox."),
        _error(
            "flood guard disabled: run `sandherd identity init` again",
            "A credential is missing: sandboxes that flood the broker are not disconnected.",
            "Run the command.",
        ),
        _error("flooding sandbox disconnected", "It exceeded a limit; it is ended.", "Read its events."),
        _warning("flooding sandbox not disconnected, retrying", "The broker did not respond.", _BROKER),
        _error(
            "credential of a user revoked",
            "It had more connections than SANDHERD_PERSON_CONNECTIONS, repeatedly.",
            "Find the program that opens them, and create another credential: `sandherd credentials create`.",
        ),
        _warning("credential of a user not revoked, retrying", "The broker did not respond.", _BROKER),
        _warning("accounts not pushed to the broker, retrying", "The broker did not respond at the start.", _BROKER),
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
        _warning("connections not listed, retrying", "Floods are not detected meanwhile.", _BROKER),
        _warning("pending commands not measured, retrying", "Projects above their share are not detected.", _BROKER),
    ),
    "runtimes of the spawner": (
        _info("process runtime enabled", "With the isolation and limits of this host."),
        _info("docker runtime enabled", "With the engine and image in the fields."),
        _info(
            "docker mounts no repositories",
            "Its containers do not see the spawner's home, for the reason in `error`; sandboxes get bundles.",
        ),
        _info("kubernetes runtime enabled", "With the cluster and namespace in the fields."),
        _info("daytona runtime enabled", "With the target and source in the fields."),
        _info("remote runtime enabled", "With the address and image in the fields."),
        _error("runtime plugin unusable", "Its sandboxes can't be started.", "Install a suitable version."),
        _error("sandbox isolation unavailable, refusing to start sandboxes", "`reason` has the cause.", _HOST),
        _error("sandbox network unavailable, refusing to start sandboxes", "`reason` has the cause.", _HOST),
        _warning(
            "sandboxes are not isolated from the host: SANDHERD_ISOLATION=none", "Agents can do what the spawner can."
        ),
        _warning("sandbox starts with weaker isolation", "As configured; `reason` has what is missing.", _HOST),
        _warning("sandbox shares this host's network", "As configured: it reaches what the host reaches."),
        _warning("sandbox disk usage is not limited", "An agent can fill the disk.", "Set `SANDHERD_SANDBOX_DISK_MB`."),
        _warning(
            "fork server failed, workers are started by exec",
            "Sandboxes start more slowly, and need more memory.",
            _HOST,
        ),
        _warning("subordinate uids not used", "Sandboxes run with the spawner's uid.", _HOST),
        _info("worker modules not compiled, sandboxes start more slowly", "The folder can't be written."),
        _info("removing file system of missing sandbox", "A file system without sandbox is removed."),
        _warning("file system of sandbox not mounted", "The sandbox can't be read or started.", _HOST),
        _warning("pod did not start, removing it", "The cluster could not run it; `why` has the reason.", _RUNTIME),
        _warning("pod not removed", "After it did not start; its removal is retried.", _RUNTIME),
        _info("exit reason of a stopped worker unknown", "Its runtime did not respond."),
        _warning("sandbox not responding, stopping it", "The provider does not reach it.", _RUNTIME),
        _warning("provider change stream interrupted, restarting", "Changes are listed meanwhile.", _RUNTIME),
        _error("provider change stream failed, restarting", "An unexpected error.", _REPORT),
        _info("sandbox stopped", "By `spawner.sandbox_shutdown`, at the end of the stack."),
        _error("sandbox not stopped", "By `spawner.sandbox_shutdown`, at the end of the stack.", _RUNTIME),
    ),
    "worker": (
        _info("connected to broker", "Events are published."),
        _warning("broker connection failed, retrying", "Events wait in the spool.", _BROKER),
        _info("credential renewed", "It is valid until `expires_at`."),
        _warning("credential not renewed yet", "The old one is used until it expires.", "Check the spawner."),
        _error("join credential not stored, old one stays in use", "The sandbox's disk failed.", "Check its disk."),
        _error("credential refused, worker ends", "It was revoked, or the sandbox has ended.", "None if it has ended."),
        _error("connection to the herd failed, worker ends", "An unexpected error.", _REPORT),
        _warning("event not acknowledged, retrying", "Events wait in the spool.", _BROKER),
        _error("event refused by broker, later events wait", "Events stay in order.", "Compare the versions."),
        _error("events not written to spool", "The sandbox's disk is full or failed.", "Check its disk."),
        _error("agent server events not written to spool", "The sandbox's disk is full or failed.", "Check that disk."),
        _error(
            "agent server status file not written",
            "The status of an agent server is not stored.",
            "Check the sandbox's disk.",
        ),
        _error("state directory is in use by another worker", "A second worker was started.", "End one of them."),
        _error("spool unusable", "The spool can't be read or written.", "Check the sandbox's disk."),
        _warning("incomplete spool record removed", "A write was interrupted; no stored event was lost."),
        _error("work not saved for the next attempt", "The spool is full.", "Raise the sandbox's disk limit."),
        _error("branch not saved", "An attempt's commits are lost; `error` or `places` has why.", _REPORT),
        _error("worker ended by an error", "An unexpected error; `places` has where.", _REPORT),
        _error("request failed", "A request to the sandbox failed unexpectedly.", _REPORT),
        _warning("herd tool failed", "An agent called a tool of the herd, and got an error."),
        _warning("file watch failed, restarting", "Changes of files are published a little later."),
        _warning("invalid message ignored", "A message to the worker is invalid.", "Compare the versions."),
        _warning("message without reply subject ignored", "Another sandbox named this one as its reply subject."),
        _warning("message for another sandbox ignored", "A delivered message names another sandbox.", _REPORT),
    ),
    "stack (`sandherd up`)": (
        _info("stack phase changed", "`phase` is the new one."),
        _error("stack not started", "`error` has the cause and the fix.", "Follow `error`."),
        _error("stack ended by an error", "`error` has the cause.", "Run `sandherd up` again."),
        _error("stack state not written", "The home's disk is full or not writable.", "Free space."),
        _warning("deleted files of the stack restored", "Clients could not connect meanwhile."),
        _warning("stack housekeeping failed, retrying", "Logs were not rotated or state not written.", "Free space."),
        _warning("process ended", "A process of the stack ended; it is restarted."),
        _info("process restarted", "It runs again."),
        _error("process restart failed", "It is retried.", "Read the process's log."),
        _error("broker does not store messages", "`problem` names the cause.", _DISK),
        _info("broker stores messages again", "Storage is available."),
        _warning("restarting nats-server that does not store messages", "It does not recover by itself."),
        _error("sandboxes may still run", "Stopping them failed.", "Read spawner.log, then run `sandherd down`."),
        _error("sandboxes not stopped, program missing", "The spawner is not installed.", "Install sandherd-spawner."),
        _warning("execute permission for others added to directory", "Sandboxes with their own uid need it."),
        _warning("system user for Postgres added, no user namespaces available", "Postgres refuses to run as root."),
    ),
}
"""By the part of the product that logs them. A message is declared once, where it is logged first."""
