"""The log messages of the worker: part of `telemetry.messages`."""

from typing import Final

from sandherd.telemetry.log_message import CHECK_BROKER, REPORT, LogMessage
from sandherd.telemetry.log_message import error as _error
from sandherd.telemetry.log_message import info as _info
from sandherd.telemetry.log_message import warning as _warning

WORKER_MESSAGES: Final[dict[str, tuple[LogMessage, ...]]] = {
    "worker": (
        _info("connected to broker", "Events are published."),
        _warning("broker connection failed, retrying", "Events wait in the spool.", CHECK_BROKER),
        _info("credential renewed", "The new credential is valid until `expires_at`."),
        _warning("credential not renewed yet", "The old credential is used until it expires.", "Check the spawner."),
        _warning(
            "credential unreadable, requesting one",
            "The credential that the spawner sent with the assignment of the sandbox is not valid.",
            "Check that the spawner and the image of the sandbox have the same version.",
        ),
        _error("join credential not stored, old one stays in use", "The sandbox's disk failed.", "Check that disk."),
        _error(
            "credential refused, worker ends",
            "The credential was revoked, or the sandbox has ended.",
            "Nothing if the sandbox has ended.",
        ),
        _error("connection to the herd failed, worker ends", "An unexpected error was raised.", REPORT),
        _warning("event not acknowledged, retrying", "Events wait in the spool.", CHECK_BROKER),
        _error(
            "event refused by broker, later events wait",
            "Later events wait in the spool, because events are published in order.",
            "Read the field `error`. The broker's `max_payload` may be too small.",
        ),
        _error("events not written to spool", "The sandbox's disk is full or failed.", "Check that disk."),
        _error("agent server events not written to spool", "The sandbox's disk is full or failed.", "Check that disk."),
        _error(
            "agent server status file not written",
            "The status of an agent server was not written.",
            "Check the sandbox's disk.",
        ),
        _error("state directory is in use by another worker", "A second worker was started.", "End one of the two."),
        _error("spool unusable", "The spool can't be read or written.", "Check the sandbox's disk."),
        _warning("incomplete spool record removed", "A write was interrupted; no stored event was lost."),
        _error("work not saved for the next attempt", "The spool is full.", "Raise the sandbox's disk limit."),
        _error(
            "branch not saved",
            "The commits of an attempt are lost. `error` is the cause; `places` names the lines of code.",
            REPORT,
        ),
        _error("worker ended by an error", "An unexpected error was raised, at the lines of code in `places`.", REPORT),
        _error("request failed", "A request to the sandbox failed unexpectedly.", REPORT),
        _warning(
            "herd tool failed",
            "A tool of the herd failed in the worker with an unexpected error. The agent got an error.",
            REPORT,
        ),
        _warning(
            "file watch is not complete, comparing more often",
            "The kernel does not watch all directories, so changes of files are published a little later.",
        ),
        _warning(
            "file watch missed a change, comparing more often",
            "The sandbox's file system does not report all changes to inotify, so changes of files are published a "
            "little later.",
        ),
        _warning("file events were lost, comparing all files", "Very many files changed at once."),
        _warning(
            "invalid message ignored",
            "A message to the worker is not valid; `fields` names the wrong fields.",
            "Check that the services and the image of the sandbox have the same version.",
        ),
        _warning(
            "message without reply subject ignored",
            "Another sandbox sent a request whose reply subject is a subject of this sandbox, and this is the reply. "
            "It is harmless.",
        ),
        _warning("message for another sandbox ignored", "A delivered message names another sandbox.", REPORT),
    ),
}
