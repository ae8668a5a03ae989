"""Responses of the API for pages: a herd with data for each of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime.now(UTC).replace(microsecond=0)


def ago(minutes: float) -> str:
    """A time before this run, as the API writes it."""
    return (NOW - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def task(number: int, state: str, text: str, **more: Any) -> dict[str, Any]:
    """A task in a list."""
    ended = state in {"completed", "failed", "cancelled"}
    return {
        "project": "demo",
        "task": f"task-{number:03}",
        "state": state,
        "attempt": 1,
        "text": text,
        "harness": "claude",
        "runtime": "process",
        "sandbox": None if state == "pending" else f"sbx-{number:03}",
        "submitted_at": ago(number * 3 + 2),
        "started_at": None if state == "pending" else ago(number * 3 + 1),
        "ended_at": ago(number) if ended else None,
        "error": None,
        "priority": "normal",
        "max_attempts": 3,
        "profile": "python" if number % 2 else None,
        **more,
    }


TASKS = [
    task(1, "running", "Add pagination to the search endpoint, and test it", branch="sandherd/task-001"),
    task(2, "running", "Make the import of large files stream instead of reading all of it", attempt=2),
    task(3, "assigned", "Fix the flaky test of the scheduler"),
    task(4, "pending", "Write the release notes for 0.4", waits_for="task-001 has to complete first"),
    task(5, "pending", "Update the dependencies", waits_for="a free place: 12 of 12 sandboxes run"),
    task(
        6, "failed", "Port the parser to the new grammar", error="the tests fail after 3 attempts: 2 failed, 140 passed"
    ),
    task(7, "completed", "Explain why the cache is not used", branch="sandherd/task-007"),
]
APPROVALS: list[dict[str, Any]] = [
    {
        "project": "demo",
        "sandbox": "sbx-001",
        "approval_id": "appr-01",
        "state": "pending",
        "task": "task-001",
        "tool": "Bash",
        "input": {
            "command": "pip install --upgrade sqlalchemy && alembic upgrade head",
            "description": "Migrate the database",
        },
        "reason": "changes the database",
        "requested_at": ago(2),
        "expires_at": ago(-28),
        "on_timeout": "deny",
    },
    {
        "project": "demo",
        "sandbox": "sbx-002",
        "approval_id": "appr-02",
        "state": "pending",
        "task": "task-002",
        "tool": "Write",
        "input": {"file_path": "/srv/shop/config/production.yaml", "content": "workers: 8\ntimeout: 30\n"},
        "reason": None,
        "requested_at": ago(1),
        "expires_at": None,
        "on_timeout": None,
    },
]
DECIDED = {
    **APPROVALS[0],
    "approval_id": "appr-00",
    "state": "granted",
    "decided_at": ago(50),
    "decided_by": "token:ada",
}
FINDING = {
    "finding_id": "f-1",
    "kind": "conflict",
    "sandbox": "sbx-001",
    "task": "task-001",
    "other": "sbx-002",
    "other_task": "task-002",
    "file_path": "app/search.py",
    "paths": ["app/search.py", "app/models.py"],
    "severity": "lines",
    "lines": [40, 62],
    "other_lines": [58, 71],
    "since": ago(9),
    "informed_at": ago(9),
}
REPORT = {
    "mode": "inform",
    "projects": [
        {
            "project": "demo",
            "coherence_score": 0.72,
            "status": "hindered",
            "reasons": ["2 agents edit app/search.py"],
            "recommendations": ["let task-002 wait for task-001"],
            "sandboxes": 3,
            "findings": [FINDING],
            "finding_count": 1,
            "interventions": [
                {"sandbox": "sbx-002", "task": "task-002", "interventions": 2, "findings": ["loop"], "last": []}
            ],
            "needs": [
                {"sandbox": "sbx-003", "task": "task-003", "reason": "waiting", "since": ago(4), "approval_id": None}
            ],
        }
    ],
}
OVERVIEW = {
    "tasks": {"running": 2, "assigned": 1, "pending": 2, "failed": 1, "completed": 14},
    "sandboxes": {"running": 3, "paused": 1, "terminated": 16},
    "needs": [
        {
            "kind": "approval",
            "project": "demo",
            "task": one["task"],
            "sandbox": one["sandbox"],
            "approval_id": one["approval_id"],
            "since": one["requested_at"],
            "text": one["tool"],
        }
        for one in APPROVALS
    ]
    + [
        {
            "kind": "failed",
            "project": "demo",
            "task": "task-006",
            "sandbox": "sbx-006",
            "since": ago(6),
            "text": "the tests fail after 3 attempts: 2 failed, 140 passed",
        }
    ],
    "need_count": 3,
    "buckets": [
        {
            "begins_at": ago(minute),
            "events": 40 + (minute * 37) % 90,
            "turns": 3,
            "tool_calls": 9,
            "errors": 0,
            "cost_micro_usd": 4000 + (minute * 7919) % 30000,
        }
        for minute in range(58, 0, -1)
    ],
    "bucket_seconds": 60,
    "since": ago(60),
    "until": ago(0),
}
LIMITS = {"memory_mb": 2048, "cpu_seconds": 3600, "open_files": 1024, "processes": 512, "cores": 2.0}
CATALOGUE = {
    "runtimes": [
        {"runtime": "process", "default": True, "isolation": "bubblewrap", "network": "internet"},
        {"runtime": "docker"},
    ],
    "profiles": {"python": {}, "browser": {}},
    "harnesses": ["claude", "openhands", "acp", "command"],
    "caps": LIMITS,
    "defaults": LIMITS,
    "max_attempts": 5,
    "max_ttl_seconds": 86400,
    "max_file_bytes": 1000000,
}
BUDGETS = {
    "budgets": [
        {
            "scope": "task",
            "project": "demo",
            "task": "task-002",
            "window": "total",
            "budget": "cost",
            "limit": 2000000,
            "used": 2100000,
            "share": 1.05,
            "granted": 0,
            "metered": True,
            "exceeded_at": ago(3),
            "warned_at": ago(12),
        },
        {
            "scope": "project",
            "project": "demo",
            "task": None,
            "window": "day",
            "budget": "tokens",
            "limit": 5000000,
            "used": 4150000,
            "share": 0.83,
            "granted": 0,
            "metered": False,
            "exceeded_at": None,
            "warned_at": ago(20),
        },
        {
            "scope": "project",
            "project": "demo",
            "task": None,
            "window": "month",
            "budget": "cost",
            "limit": 400000000,
            "used": 91000000,
            "share": 0.2275,
            "granted": 50000000,
            "metered": True,
            "exceeded_at": None,
            "warned_at": None,
        },
    ]
}


def service(name: str, problem: str | None = None) -> dict[str, Any]:
    """The health of a service."""
    return {
        "service": name,
        "version": "0.1.0",
        "instance": "01a1",
        "now": ago(0),
        "parts": [{"kind": "task", "name": "broker", "problem": problem}],
        "waiting": [{"consumer": "events", "pending": 3, "unacknowledged": 0, "still_seconds": 0}],
    }


HEALTH = {
    "services": {
        "spawner": service("spawner"),
        "event-ingest": service("event-ingest", "the database does not respond"),
        "monitor": None,
        "message-relay": service("message-relay"),
    },
    "healthy": False,
}
DOCTOR = {
    "checks": [
        {"check": "broker", "state": "ok", "found": "nats-server 2.15.1, round-trip time 0.4 ms"},
        {"check": "streams", "state": "wrong", "found": "stream OUTPUT: missing", "remedy": "provision the herd"},
        {"check": "dead letters", "state": "look", "found": "1 in all projects", "remedy": "list the dead letters"},
    ],
    "healthy": False,
    "checked_at": ago(1),
}
AUDIT = {
    "sources": [],
    "source_count": 41,
    "event_count": 18230,
    "missing": 0,
    "duplicates_refused": 3,
    "unstored": 0,
    "dead": 1,
    "conflicts": 0,
}
LETTER = {
    "number": 7,
    "service": "event-ingest",
    "reason": {"code": "invalid_json", "message": "the message is no JSON"},
    "subject": "sandherd.v1.event.demo.sbx-001",
    "stream": "EVENTS",
    "stream_sequence": 90,
    "size": 2048,
    "dead_at": ago(80),
    "payload": '{"type": "agent.mess',
}
DEAD_LETTER = {"sequence": 88, "type": "task.failed", "subject": "task-003", "reason": "status 500", "at": ago(90)}
WEBHOOKS: list[dict[str, Any]] = [
    {"name": "alerts", "url": "https://example.com/events", "types": ["task.failed", "approval"], "entities": [],
     "state": "active", "created_at": ago(9000), "created_by": "ada", "secret_at": ago(9000), "position": 1234,
     "waiting": 3, "retrying": 1, "dropped": 12, "dropped_at": ago(300), "dead": 1, "accepted_at": ago(200),
     "failing_since": ago(100), "problem": "status 500"},
    {"name": "copy", "url": "https://archive.example.com/hooks/sandherd", "types": [], "entities": ["task-001"],
     "state": "active", "created_at": ago(400), "secret_at": ago(400), "position": 1240, "accepted_at": ago(1)},
]  # fmt: skip
SPEC = {
    "text": TASKS[5]["text"],
    "harness": {"kind": "claude", "approvals": {"tools": {"Bash": "ask"}}},
    "files": {"grammar.txt": "a = b\n"},
    "secrets": {"TOKEN": "forge-token"},
    "repository": {"url": "https://forge.example.com/shop/parser", "base": "main"},
    "limits": {"memory_mb": 2048},
    "labels": {"team": "web"},
}
SUBMITTED = {
    "events": [
        {
            "stream_sequence": 5,
            "envelope": {"type": "task.submitted", "data": {"task": TASKS[5]["text"], "labels": {"team": "web"}}},
        }
    ]
}
HITS = [
    {
        "id": f"01976e3c-0000-7000-8000-{number:012}",
        "stream_sequence": number,
        "time": ago(number),
        "project": "demo",
        "entity": "sbx-001",
        "type": "agent.message",
        "kind": "message",
        "turn": number,
        "snippet": "the pagination of the search endpoint",
        "matches": [{"start": 4, "end": 14}],
    }
    for number in (7, 5)
]
USED = {
    "cost_micro_usd": 1_250_000,
    "input_tokens": 91_000,
    "output_tokens": 7_000,
    "turns": 12,
    "tool_calls": 60,
    "errors": 3,
}
STATISTICS = {
    "groups": [
        {**USED, "group": "2026-11-27", "project": "demo"},
        {**USED, "cost_micro_usd": 0, "group": "2026-11-28"},
    ],
    "total": USED,
    "group_count": 2,
    "since": ago(10_000),
}
COMPARISON: dict[str, Any] = {
    **{
        side: {
            **USED,
            "sandbox": name,
            "project": "demo",
            "task": "task-001",
            "attempt": attempt,
            "state": "terminated",
            "events": 300 * attempt,
            "seconds": 340.0,
            "lines_added": 12,
            "lines_removed": 3,
        }
        for side, name, attempt in (("first", "sbx-001", 1), ("second", "sbx-002", 2))
    },
    "types": [{"type": "agent.message", "first": 3, "second": 5}],
    "turns": [{"turn": 1, "first": {"seconds": 9.0, "tool_calls": 4, "cost_micro_usd": 90}, "second": None}],
    "tools": [{"tool": "Bash", "first": {"calls": 4, "failed": 1}, "second": None}],
    "files": [{"file_path": "app/models.py", "first": {"changes": 1, "lines_added": 4}, "second": None}],
    "cut": False,
}
EXAMPLES: dict[str, Any] = {
    "/session": {"project": "demo", "name": "ada", "role": "operate", "expires_at": ago(-600)},
    "/overview": OVERVIEW,
    "/tasks": {"tasks": TASKS, "next_cursor": None},
    "/tasks/task-004": TASKS[3],
    "/tasks/task-006": TASKS[5],
    "/tasks/task-006/submitted": {"task": "task-006", "spec": SPEC},
    "/search": {"hits": HITS, "next_cursor": None},
    "/statistics": STATISTICS,
    "/comparison": COMPARISON,
    "/events": SUBMITTED,
    "/approvals": {"approvals": [*APPROVALS, DECIDED], "next_cursor": None},
    "/monitor/report": REPORT,
    "/catalogue": CATALOGUE,
    "/budgets": BUDGETS,
    "/health": HEALTH,
    "/webhooks": {"webhooks": WEBHOOKS, "limit": 16},
    "/webhooks/alerts": WEBHOOKS[0] | {"dead_letters": [DEAD_LETTER]},
    "/audit": AUDIT,
    "/doctor": DOCTOR,
    "/dead-letters": {"letters": [LETTER], "next_cursor": None},
    "/dead-letters/7": LETTER,
}
EMPTY: dict[str, Any] = {
    **EXAMPLES,
    "/overview": {**OVERVIEW, "tasks": {}, "sandboxes": {}, "needs": [], "need_count": 0, "buckets": []},
    "/tasks": {"tasks": [], "next_cursor": None},
    "/approvals": {"approvals": [], "next_cursor": None},
    "/monitor/report": {"mode": "inform", "projects": []},
    "/budgets": {"budgets": []},
    "/search": {"hits": [], "next_cursor": None},
    "/statistics": {"groups": [], "total": {}, "group_count": 0, "since": None},
    "/dead-letters": {"letters": [], "next_cursor": None},
    "/webhooks": {"webhooks": [], "limit": 16},
}
