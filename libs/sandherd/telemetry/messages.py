"""The table of all log messages: level, text and meaning. The text is the field `event` of a log line.

The texts are constants, so operators can search for them and alert on them. Calls of the logger contain the text as a
literal, so a search finds it in the code as well. A test checks that the table has exactly the messages of the calls.
Services don't import this module.
"""

from typing import Final

from sandherd.telemetry.log_message import CHECK_BROKER, FREE_DISK, REPORT, LogMessage
from sandherd.telemetry.log_message import error as _error
from sandherd.telemetry.log_message import info as _info
from sandherd.telemetry.log_message import warning as _warning
from sandherd.telemetry.spawner_messages import SPAWNER_MESSAGES
from sandherd.telemetry.worker_messages import WORKER_MESSAGES

_DEAD: Final = "Inspect it with `sandherd dead list`."
_HISTORY: Final = "Follow the remedy that `sandherd history status` shows."
_STREAM: Final = "If it repeats, follow the runbook SandherdStreamFilling."
_ARTIFACTS: Final = "See the runbook SandherdArtifactsNotStored."

MESSAGES: Final[dict[str, tuple[LogMessage, ...]]] = {
    "every service": (
        _info("service running", "The service handles messages."),
        _info("service stopping", "The service received a signal and ends."),
        _error("part of the service failed", "The service ends, because a part of it failed.", REPORT),
        _error("request handler failed", "A request got an error reply with the code `internal`.", REPORT),
        _error("handler failed", "A message could not be handled. `outcome` states what happens to it.", REPORT),
        _warning("reply not sent", "The requester does not receive its reply and can repeat the request."),
        _warning(
            "requests refused, too many of one source",
            "The requests get an error reply with the code `busy`.",
            "See which sandbox or client publishes most: `sandherd doctor`.",
        ),
        _warning("limit of open files not raised", "The service can serve fewer connections.", "Raise `ulimit -n`."),
        _warning(
            "message not acknowledged, retrying", "The broker did not acknowledge a message in time.", CHECK_BROKER
        ),
        _warning("delivery not acknowledged", "The broker will redeliver a message that was handled."),
        _info("broker connection restored", "The client reconnected to the broker."),
        _warning("broker not reachable, retrying", "The first connection to the broker failed.", CHECK_BROKER),
        _warning(
            "certificate files not reloaded", "The previous files are used.", "Check NATS_CA, NATS_CERT and NATS_KEY."
        ),
        _warning("broker connection error", "The client library reported an error and continues.", CHECK_BROKER),
        _warning(
            "received messages dropped, queue full",
            "More messages of a kind arrived than this process can handle. Requesters repeat dropped requests.",
            "See which sandbox or client publishes most: `sandherd doctor`.",
        ),
        _error(
            "broker denied permission",
            "The credential does not permit the subject. For a reply subject (`_R_…`, `_INBOX…`): the reply was too "
            "late, or the requester chose a subject that is not permitted.",
            "Nothing for a reply subject. Otherwise create the service's credential again with "
            "`sandherd identity init`.",
        ),
        _error(
            "broker connection closed permanently",
            "The broker refuses further connections of this process, and the process ends.",
            CHECK_BROKER,
        ),
        _warning(
            "connection not drained, closing",
            "Messages of streams that were not acknowledged are redelivered. Messages that were not sent yet are lost.",
        ),
        _warning("connection not closed, aborting", "The messages written last may not have reached the broker."),
        _info("connection lost during close", "Messages that were in transit are redelivered."),
        _error(
            "consumer not responding, rebinding",
            "Neither messages nor heartbeats of a consumer arrived. The service subscribes to it again.",
            CHECK_BROKER,
        ),
        _error("consumers not created, retrying", "No message is handled until the consumers exist.", CHECK_BROKER),
        _warning("message stored as dead letter", "A message could not be handled and was stored.", _DEAD),
        _error(
            "dead letters dropped",
            "One source caused too many dead letters. The further ones were counted, but not stored.",
            "End the sandbox that publishes them.",
        ),
        _warning("dead letter summary not stored", "The count of dropped dead letters was not stored.", CHECK_BROKER),
        _info("dead letter requeued", "A dead letter is handled again, because `user` has requested it."),
        _warning("requeued dead letter failed again", "The message was stored as a dead letter again.", _DEAD),
        _error(
            "command with secrets not erased",
            "A handled command with secrets is still in its stream. Its values are in clear text if the client sent "
            "them unencrypted. The stream deletes the command at its maximum age.",
            "Rotate the secrets, unless you know that they were encrypted and that the stream was not copied.",
        ),
        _info("lease acquired", "This replica now does the work that only one replica may do at a time."),
        _warning("lease lost", "Another replica takes over.", CHECK_BROKER),
        _info("lease not released, it will expire", "Another replica takes over once the lease has expired."),
        _error("storage is exhausted", "The broker does not store messages. `problem` states the cause.", FREE_DISK),
        _info("storage available again", "The broker stores messages again."),
        _warning(
            "purge refused",
            "A purge of a stream is not permitted. `reason` states why: a consumer has not acknowledged all of the "
            "events, too few chunks of a sandbox's artifacts would remain, or the stream is not full enough.",
            _STREAM,
        ),
        _info("exporting traces and metrics", "The service exports them to the configured collector."),
        _info("collector accepts exports again", "Exports continue."),
        _warning(
            "collector does not accept exports, continuing without it", "Exports are dropped.", "Check the collector."
        ),
        _warning("metrics export failed", "Metrics of one interval were not exported.", "Check the collector."),
    ),
    "event-ingest": (
        _info("database available", "Events are stored again."),
        _warning("database unavailable", "Events wait in the stream until Postgres is available.", "Check Postgres."),
        _warning("database error, checking again", "A check of Postgres failed.", "Check Postgres."),
        _warning("batch not stored, waiting for database", "The batch is stored later.", "Check Postgres."),
        _info("migration applied", "The database schema was changed."),
        _info("partitions created", "Partitions for the next days exist."),
        _info("partition index created", "A partition has an index that this version needs."),
        _info(
            "partition index dropped",
            "The index is not needed, because another index contains its events, or its creation was interrupted.",
        ),
        _info("partition index packed", "The index of a past day was rebuilt without space for further events."),
        _warning("partition index not created, retrying", "Queries that need it are slow.", "Check Postgres."),
        _info("autovacuum settings of partition changed", "A partition has the settings for rows that never change."),
        _info(
            "day of the history dropped",
            "The retention of every project with events of the day has expired, and no hold covers the day.",
        ),
        _warning(
            "day of the history not dropped, retrying",
            "Long statements use the history, or another replica drops the day. The drop is retried a minute later.",
            "If the message is repeated, look for long transactions in Postgres.",
        ),
        _info("day of the history reduced", "Its events with a shorter retention are removed."),
        _warning(
            "day of the history not reduced, retrying",
            "Other transactions use the partition, another replica is reducing, events of the day were stored "
            "meanwhile, or Postgres reported `error`.",
            "Read the field `error`; without it, look for long transactions in Postgres.",
        ),
        _info(
            "ended tasks deleted", "They ended more than `history_task_days` ago, and none of their events is stored."
        ),
        _info("day of the history archived", "Its events are in files that were read back and compared."),
        _error(
            "day of the history not archived, retrying",
            "The day is neither dropped nor reduced. `sandherd history status` shows the cause.",
            _HISTORY,
        ),
        _info("day of the history restored", "Its events are in the history again, for a limited time."),
        _error("day of the history not restored", "A file of the archive is missing or wrong.", _HISTORY),
        _warning("restore failed, retrying", "The restore of a day continues later.", "Check Postgres."),
        _warning(
            "artifacts not stored, retrying",
            "The broker or Postgres did not respond.",
            "Check the broker and Postgres.",
        ),
        _error("artifact not stored, retrying", "The artifact store can't be written; see `error`.", _ARTIFACTS),
        _warning(
            "artifact incomplete, not stored",
            "Some chunks of the artifact are missing in its stream, or have the wrong content; see `error`.",
            _ARTIFACTS,
        ),
        _error("artifacts not removed, retrying", "The artifact store can't be changed; see `error`.", _ARTIFACTS),
        _info("artifacts removed", "No stored event refers to them any more."),
        _info("events without a partition deleted", "They were stored longer than `history_days` ago."),
        _warning("retention failed, retrying", "Days that have expired are dropped later.", "Check Postgres."),
        _warning("stream purged", "The stream was nearly full, so its oldest messages were removed.", _STREAM),
        _warning("purging oldest artifacts of sandbox", "One sandbox uses too much of the stream.", "End the sandbox."),
        _info("lease lost, purging stopped", "Another replica purges."),
        _warning("purge failed, retrying", "A full stream was not purged.", CHECK_BROKER),
        _warning("subscriptions not measured, retrying", "Their lag is not current.", "Check broker and Postgres."),
        _warning("subscription expires soon", "No client reads it.", "Inform the team that uses it, or delete it."),
    ),
    "message-relay": (
        _info("approval requested again", "A restarted agent repeated a request."),
        _warning("invalid bucket entry ignored", "An entry of a bucket is invalid.", "Delete the entry."),
        _warning("bucket unavailable, retrying", "Messages and approvals are delivered later.", CHECK_BROKER),
        _warning(
            "last event not read, retrying",
            "The last event about messages to a sandbox could not be read. It shows whether a message was delivered.",
            CHECK_BROKER,
        ),
        _warning("lease lost, delivery stopped", "Another replica delivers."),
        _warning("sandboxes with waiting messages not listed", "Waiting messages are delivered later.", CHECK_BROKER),
        _warning("inbox unavailable", "Messages to one sandbox are delivered later.", CHECK_BROKER),
        _info("message already deleted", "Another replica has deleted it."),
        _warning("invalid receipt from worker", "The message is delivered again.", "If this repeats, end the sandbox."),
        _warning(
            "secret of a webhook not read, retrying",
            "The webhook sends its events later.",
            "If this repeats, create a new secret with `webhooks rotate`.",
        ),
        _warning("events for a webhook not read, retrying", "The webhook sends them later.", CHECK_BROKER),
        _warning("webhooks not read, retrying", "Changes of webhooks take effect later.", CHECK_BROKER),
        _warning(
            "event of a webhook given up",
            "The receiver accepted no attempt. The event is a dead letter now.",
            "Run `webhooks replay NAME --dead-letters`.",
        ),
        _warning(
            "events of a webhook dropped by the stream",
            "The stream removed events before the webhook had sent them. They are not sent.",
            "Inform the owner of the webhook: its receiver is too slow.",
        ),
        _warning(
            "webhook disabled",
            "Its receiver has accepted nothing for `SANDHERD_WEBHOOK_DISABLE_AFTER` or has responded with 410, or its "
            "URL is not permitted any more. `reason` is the last failure.",
            "Inform its owner: `webhooks replay` enables it.",
        ),
        _error("delivery of a webhook failed, retrying", "The webhook sends nothing for 30 s.", REPORT),
    ),
    "gateway": (
        _info("serving the HTTP API", "The API accepts requests, at `http_port`."),
        _warning("events not read, retrying", "Clients that follow events get them later.", CHECK_BROKER),
        _warning(
            "sign-in refused",
            "A sign-in with an OpenID provider failed. `reason` is `denied` (by the provider), `identity` (its reply "
            "is not valid), `no_project` (the settings name no group of the user), `provider` (it does not respond) or "
            "`state` (the browser has not begun this sign-in).",
            "See `error`, and docs/gateway.md.",
        ),
        _error("request to the API failed", "The gateway replied with status 500.", "Report it."),
    ),
    "monitor": (
        _info("snapshot restored", "The monitor continues at the snapshot's position."),
        _warning("snapshot unusable, reading the stream from its first event", "The state is computed again."),
        _warning("snapshot not saved", "A restart will read more events.", CHECK_BROKER),
        _warning("snapshot unavailable, retrying", "The monitor waits for its snapshot.", CHECK_BROKER),
        _info(
            "budget reached",
            "The usage of a budget has reached 80 % (`limit` ends with `warned`) or 100 % (`exceeded`).",
        ),
        _info("budget exceeded, ending sandbox", "The agent did not end by itself in time."),
        _info("lease lost, budget checks stopped", "Another replica enforces the budgets."),
        _warning("budgets not checked, retrying", "Budgets are enforced later.", CHECK_BROKER),
        _error(
            "budgets of a project not checked, retrying",
            "Its ledger can't be written, or is invalid. Other projects are checked; a blocked one stays blocked.",
            "Report `error` as a bug, unless the bucket `budgets` is full.",
        ),
        _warning("bucket not read, retrying", "Budgets are enforced later.", CHECK_BROKER),
        _error(
            "entry of budgets unreadable",
            "The entry in `key` can't be read: a newer version wrote it, or it is damaged. The budgets of a ledger are "
            "not enforced, and the usage in a summary is not counted.",
            "See the runbook SandherdBudgetUnreadable.",
        ),
        _warning("summaries not written, retrying", "Budgets and reports lag behind the events.", CHECK_BROKER),
        _warning(
            "events after the snapshot are no longer in the stream",
            "The stream removed events that the monitor had not read.",
            "Find out why the monitor was not running.",
        ),
        _warning(
            "state of a rule in the snapshot discarded",
            "The rule's state has changed in an upgrade. The rule begins with an empty state.",
        ),
        _error("rule failed, disabled for the sandbox", "It raised the error in `reason`.", "Report it."),
        _info("rule found a problem", "The monitor ends the sandbox because of the rule in `rule`."),
        _info("pattern found in an agent's behaviour", "A guardian rule found it; `step` is what is done about it."),
        _info("decision already stored, not repeated", "It was stored by another replica, or before a restart."),
        _warning("events for the assessment unavailable", "A finding is not assessed.", "Check event-ingest."),
        _info("rule muted", "A user has muted a guardian rule for a sandbox."),
        _info("rule unmuted", "A muted rule is evaluated again."),
        _warning("lease lost, watch stopped", "Another replica watches the partition."),
        _warning(
            "leases not read, retrying", "The replica keeps its partitions until their leases expire.", CHECK_BROKER
        ),
        _info("snapshot for a different number of partitions deleted", "Each partition has a snapshot of its own now."),
        _warning(
            "sandbox record unreadable, finding not acted upon",
            "The finding waits until the record can be read.",
            CHECK_BROKER,
        ),
        _warning(
            "stream not responding, reading again", "The monitor reads again from its last position.", CHECK_BROKER
        ),
        _warning("lease lost, conductor stopped", "Another replica compares sandboxes."),
        _warning(
            "conductor record not stored, reading all records again",
            "Another replica may have stored it.",
            CHECK_BROKER,
        ),
        _warning(
            "conductor record unreadable, starting with an empty one",
            "Findings of that project may be published again.",
        ),
        _warning("broker not responding, sandboxes not compared", "They are compared a little later.", CHECK_BROKER),
        _warning("summary unreadable, ignored", "The sandbox of this summary is not compared with others."),
        _warning("broker not responding, rules not evaluated", "Whether workers are silent is unknown.", CHECK_BROKER),
    ),
    **SPAWNER_MESSAGES,
    **WORKER_MESSAGES,
    "stack (`sandherd up`)": (
        _info("stack phase changed", "`phase` is the new phase."),
        _error("stack not started", "`error` has the cause and the fix.", "Follow `error`."),
        _error("stack ended by an error", "`error` has the cause.", "Run `sandherd up` again."),
        _error("stack state not written", "The home's disk is full or not writable.", "Free space."),
        _warning("deleted files of the stack restored", "Clients could not connect while the files were missing."),
        _warning("stack housekeeping failed, retrying", "Logs were not rotated or state not written.", "Free space."),
        _warning("process ended", "A process of the stack ended; it is restarted."),
        _info("process restarted", "A process of the stack runs again."),
        _error("process restart failed", "The restart of a process is retried.", "Read the process's log."),
        _error("broker does not store messages", "`problem` names the cause.", FREE_DISK),
        _info("broker stores messages again", "Storage is available."),
        _warning("restarting nats-server that does not store messages", "The broker does not recover by itself."),
        _error("sandboxes may still run", "Stopping them failed.", "Read spawner.log, then run `sandherd down`."),
        _error("sandboxes not stopped, program missing", "The spawner is not installed.", "Install sandherd-spawner."),
        _warning("execute permission for others added to directory", "Sandboxes with their own uid need it."),
        _warning("system user for Postgres added, no user namespaces available", "Postgres refuses to run as root."),
    ),
}
"""The messages of each part of Sandherd. A message that several parts log is declared for one of them only."""
