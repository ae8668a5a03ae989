"""The settings of all components: name, environment variable, default and meaning."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sandherd.contracts.budgets import HerdBudgets
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.requests.catalogue import MountSource, Profile
from sandherd.contracts.specs import Image, SandboxLimits
from sandherd.contracts.states import NotificationKind, SteeringStep
from sandherd.contracts.subscriptions import PLACES
from sandherd.settings.assessor import AssessorSettings
from sandherd.settings.client import ClientSettings, variables_of
from sandherd.settings.coordination import CoordinationSettings
from sandherd.settings.daytona import DaytonaSettings
from sandherd.settings.docker import DockerSettings
from sandherd.settings.fields import (
    DISK,
    MAX_FILE_MIB,
    NONE,
    Alias,
    BrokerAddress,
    Env,
    Limit,
    Names,
    Positive,
    in_megabytes,
)
from sandherd.settings.forges import ForgeSettings
from sandherd.settings.gateway import GatewaySettings
from sandherd.settings.history import HistorySettings
from sandherd.settings.kubernetes import KubernetesSettings
from sandherd.settings.network import NetworkSettings
from sandherd.settings.pull_requests import PullRequestSettings
from sandherd.settings.remote import ApiAddress, RemoteSettings
from sandherd.settings.repositories import RepositorySettings
from sandherd.settings.rule_thresholds import RuleSettings
from sandherd.settings.webhooks import WebhookSettings

_DISK: Final = Env("SANDHERD_SANDBOX_DISK_MB", aliases=(Alias(DISK, in_megabytes),))


class Settings(
    ClientSettings,
    NetworkSettings,
    DockerSettings,
    DaytonaSettings,
    KubernetesSettings,
    RemoteSettings,
    RepositorySettings,
    PullRequestSettings,
    ForgeSettings,
    AssessorSettings,
    CoordinationSettings,
    GatewaySettings,
    HistorySettings,
    WebhookSettings,
    BaseModel,
):
    """The settings of all components. Each component uses some of them. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    database_url: Annotated[str, Env("DATABASE_URL", secret=True)] = "postgresql://localhost/sandherd"
    """The URL of the database with the history."""
    http_host: Annotated[str, Env("SANDHERD_HTTP_HOST")] = "127.0.0.1"
    """The address on which a service serves /metrics, /healthz and /readyz."""
    http_port: Annotated[int, Env("SANDHERD_HTTP_PORT"), Field(ge=0, le=65535)] = 0
    """The port for /metrics, /healthz and /readyz; 0: any free port."""
    http_port_file: Annotated[Path | None, Env("SANDHERD_HTTP_PORT_FILE")] = None
    """A file that the actual port is written to."""
    identity_dir: Annotated[Path | None, Env("SANDHERD_IDENTITY_DIR")] = None
    """The folder with the spawner's signing keys."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Env("SANDHERD_LOG_LEVEL")] = "info"
    """The lowest level of log lines that are written."""
    otlp_endpoint: Annotated[str | None, Env("OTEL_EXPORTER_OTLP_ENDPOINT")] = None
    """An OTLP/HTTP collector that services export traces and metrics to; if unset, there is only /metrics."""
    traced_requests: Annotated[float, Env("SANDHERD_TRACED_REQUESTS"), Field(ge=0, le=1)] = 0.01
    """The share of requests whose spans are exported. Spans of slow requests and of errors of services always are
    exported."""
    sandbox_otlp_endpoint: Annotated[ApiAddress | None, Env("SANDHERD_SANDBOX_OTLP_ENDPOINT")] = None
    """An OTLP/HTTP collector that agents in sandboxes may export to; if unset, they export nothing."""

    max_sandboxes: Annotated[int, Env("SANDHERD_MAX_SANDBOXES"), Field(ge=1)] = 8
    """Maximum number of live sandboxes."""
    max_sandboxes_per_project: Annotated[Limit, Env("SANDHERD_MAX_SANDBOXES_PER_PROJECT")] = None
    """Maximum number of live sandboxes of one project; if unset, only the limit for all projects applies."""
    project_limits: Annotated[dict[SafeName, Limit], Env("SANDHERD_PROJECT_LIMITS")] = {}
    """Maximum number of live sandboxes of single projects, by name."""
    runtime_limits: Annotated[dict[SafeName, Limit], Env("SANDHERD_RUNTIME_LIMITS")] = {}
    """Maximum number of live sandboxes in each runtime, by name. For other runtimes only the limit for all applies."""
    priority_age: Annotated[Positive, Env("SANDHERD_PRIORITY_AGE")] = 3600
    """The time of waiting that increases a task's rank as much as one step of priority; see docs/scheduling.md."""
    max_attempts: Annotated[int, Env("SANDHERD_MAX_ATTEMPTS"), Field(ge=1, le=20)] = 3
    """Maximum number of attempts of a task that sets no maximum. By default only transient errors are retried."""
    attempt_timeout: Annotated[Positive | None, Env("SANDHERD_ATTEMPT_TIMEOUT")] = None
    """Maximum time of an attempt of a task that sets no maximum; if unset, as long as a sandbox may live."""
    runtime: Annotated[SafeName, Env("SANDHERD_RUNTIME")] = "process"
    """The default runtime of sandboxes."""
    runtimes: Annotated[frozenset[SafeName], Names, Env("SANDHERD_RUNTIMES")] = frozenset()
    """Further runtimes that sandboxes may use. The default runtime and those of profiles are always available."""
    sandbox_image: Annotated[Image | None, Env("SANDBOX_IMAGE")] = None
    """The default image of sandboxes, in runtimes with images."""
    sandbox_nats_url: Annotated[BrokerAddress | None, Env("SANDHERD_SANDBOX_NATS_URL")] = None
    """The URL of the broker for sandboxes that do not run on this host; if unset, NATS_URL."""
    sandbox_nats_ca: Annotated[Path | None, Env("SANDHERD_SANDBOX_NATS_CA")] = None
    """A PEM file with the authorities that sandboxes trust for TLS to the broker; if unset, the ones in their image."""
    sandbox_nats_cert: Annotated[Path | None, Env("SANDHERD_SANDBOX_NATS_CERT")] = None
    """A PEM file with the client certificate that sandboxes present to the broker."""
    sandbox_nats_key: Annotated[Path | None, Env("SANDHERD_SANDBOX_NATS_KEY")] = None
    """The PEM file with the certificate's key. Agents can read it: the certificate must only identify sandboxes."""
    sandbox_memory_gb: Annotated[float, Env("SANDBOX_MEMORY_GB"), Field(ge=0.0625, le=64)] = 2
    """The memory of a sandbox without limits of its own."""
    sandbox_cores: Annotated[float | None, Env("SANDBOX_CPU"), Field(ge=0.05, le=256)] = None
    """The number of cores of a sandbox whose limits set none; if unset, its runtime decides."""
    sandbox_disk_mb: Annotated[int | None, _DISK, Field(ge=0, le=16_777_216)] = None
    """The size in MiB of the separate file system of each sandbox of the process runtime. If unset, it is a quarter of
    the file system of the home, at most 16 GiB, if the spawner is root and can create file systems. 0: the disk of
    sandboxes is not limited, which `sandherd runtimes` shows."""
    caps: Annotated[SandboxLimits, Env("SANDHERD_CAPS")] = SandboxLimits(
        memory_mb=65_536, cpu_seconds=604_800, open_files=65_536, processes=32_768
    )
    """The maximum of each limit that a task, a sandbox or a profile may set."""
    forward_env: Annotated[frozenset[EnvName], Names, Env("SANDHERD_FORWARD_ENV")] = frozenset()
    """Names of the spawner's own environment variables that every sandbox gets, as secrets; profiles may name more."""
    sandbox_mounts: Annotated[frozenset[MountSource], Names, Env("SANDHERD_SANDBOX_MOUNTS")] = frozenset()
    """The sources that profiles may mount: names of volumes, and folders of the host with everything in them."""
    profiles: Annotated[dict[SafeName, Profile], Env("SANDHERD_PROFILES")] = {}
    """Named configurations of sandboxes: runtime, limits, variables, and how many are started in advance."""
    constraints: Annotated[Constraints, Env("SANDHERD_CONSTRAINTS")] = Constraints()
    """Paths that no agent may write, commands that it may not run, and which default constraints do not apply."""
    max_ttl: Annotated[Positive, Env("SANDHERD_MAX_TTL")] = 604_800
    """Maximum lifetime of a sandbox, including all extensions."""
    max_file_mb: Annotated[int, Env("SANDHERD_MAX_FILE_MB"), Field(ge=1, le=MAX_FILE_MIB)] = 256
    """Maximum size of a file, or archive of a folder, that is uploaded to a sandbox or downloaded."""
    max_work_mb: Annotated[int, Env("SANDHERD_MAX_WORK_MB"), Field(ge=0, le=1024)] = 64
    """Maximum size of the archive of a failed attempt's work tree, which is stored for the next attempt; 0: no archive
    is stored."""
    orphan_grace: Annotated[Positive, Env("SANDHERD_ORPHAN_GRACE")] = 60
    """The time from the discovery of an orphan, which is a sandbox in a runtime without a record, to its removal."""
    isolation: Annotated[Literal["auto", "bubblewrap", "weak", "none"], Env("SANDHERD_ISOLATION")] = "auto"
    """How the process runtime isolates sandboxes. Where the host can't isolate them, `auto` refuses to start any,
    `bubblewrap` also refuses to start the spawner, and `weak` starts them with what isolation there is, with a warning
    each time. `none` is for tests."""
    sandbox_uid_first: Annotated[int, Env("SANDHERD_SANDBOX_UID_FIRST"), Field(ge=1000, le=2_147_000_000)] = (
        1_879_048_192
    )
    """The first host uid and gid for sandboxes of the process runtime, where the spawner is root."""
    sandbox_uid_count: Annotated[int, Env("SANDHERD_SANDBOX_UID_COUNT"), Field(ge=16, le=1_000_000)] = 65_536
    """How many host uids, from the first one on, are reserved for sandboxes; each sandbox has one of its own."""
    stop_grace: Annotated[Positive, Env("SANDHERD_STOP_GRACE")] = 10
    """How long a sandbox may take to stop before it is killed."""
    spawn_timeout: Annotated[Positive, Env("SANDHERD_SPAWN_TIMEOUT")] = 300
    """How long a sandbox may take until its worker publishes its first event. With a busy container engine this takes
    minutes."""
    keep_ended: Annotated[Positive, Env("SANDHERD_KEEP_ENDED")] = 86_400
    """How long the records of ended tasks, sandboxes and branches stay in the broker's key-value buckets. The history
    in Postgres has its own retention."""
    keep_secrets: Annotated[Annotated[float, Field(ge=0)], Env("SANDHERD_KEEP_SECRETS")] = 3600
    """How long secrets of a task that failed or was cancelled stay stored, encrypted, for a retry; 0: not at all."""
    worker_credential_life: Annotated[Positive, Env("SANDHERD_WORKER_CREDENTIAL_LIFE")] = 3600
    """How long a worker's credential is valid; it is renewed after half of that."""
    heartbeat_interval: Annotated[Positive, Env("HEARTBEAT_INTERVAL")] = 30
    """How often a worker publishes a heartbeat."""

    dead_after: Annotated[Positive, Env("SANDHERD_DEAD_AFTER")] = 90
    """After this time without any event, a sandbox is dead."""
    idle_after: Annotated[Positive, Env("SANDHERD_IDLE_AFTER")] = 600
    """After this time without work and with nothing in flight, a sandbox is idle."""
    stuck_after: Annotated[Positive, Env("SANDHERD_STUCK_AFTER")] = 900
    """After this time in flight, a tool or model call is stuck."""
    finished_after: Annotated[Positive, Env("SANDHERD_FINISHED_AFTER")] = 300
    """After this time without a message, a sandbox whose agent has ended is finished."""
    flood_mb: Annotated[int, Env("SANDHERD_FLOOD_MB"), Field(ge=1)] = 256
    """A sandbox that publishes more than this many MiB within a minute floods the shared stream, and is ended."""
    flood_messages: Annotated[int, Env("SANDHERD_FLOOD_MESSAGES"), Field(ge=1000)] = 1000
    """The sustained rate of messages per second that a sandbox may publish. Messages above it are handled later. A
    sandbox that exceeds it by more than 10 seconds' worth of messages is cut off: its credentials are revoked, and it
    is ended. Sandherd's worker stays below 800."""
    flood_project_messages: Annotated[int, Env("SANDHERD_FLOOD_PROJECT_MESSAGES"), Field(ge=1000)] = 10_000
    """The sustained rate of messages per second of all sandboxes of a project together; the sandbox that publishes most
    is cut off."""
    person_connections: Annotated[int, Env("SANDHERD_PERSON_CONNECTIONS"), Field(ge=1)] = 100
    """Maximum number of open connections with one user's credential; further ones are closed."""
    client_messages: Annotated[int, Env("SANDHERD_CLIENT_MESSAGES"), Field(ge=1)] = 2000
    """The sustained rate of messages per second of all clients of a project together. If they exceed it by more than 10
    seconds' worth of messages, the connections of the credential that publishes most are closed; its clients may
    connect again."""
    project_commands_mb: Annotated[int, Env("SANDHERD_PROJECT_COMMANDS_MB"), Field(ge=1)] = 128
    """Maximum MiB of the commands of one project that are not handled yet. Above it, the connections of its clients
    that publish are closed."""
    project_uploads_mb: Annotated[int, Env("SANDHERD_PROJECT_UPLOADS_MB"), Field(ge=1)] = 2048
    """Maximum MiB of the stored uploads of one project; further ones are refused. An upload is stored for an hour, the
    upload of a task as long as its record. Files up to 256 KiB are not stored."""
    dead_letters_per_minute: Annotated[int, Env("SANDHERD_DEAD_LETTERS_PER_MINUTE"), Field(ge=1)] = 60
    """Maximum number of dead letters of one sandbox that are stored within a minute; further ones are only counted."""
    open_approvals: Annotated[int, Env("SANDHERD_OPEN_APPROVALS"), Field(ge=1)] = 100
    """Maximum number of pending approvals of one sandbox; further ones are denied immediately."""
    project_messages: Annotated[int, Env("SANDHERD_PROJECT_MESSAGES"), Field(ge=1)] = 2000
    """Maximum number of messages that wait for the sandboxes of one project; further ones are rejected."""
    project_records_mb: Annotated[int, Env("SANDHERD_PROJECT_RECORDS_MB"), Field(ge=1)] = 128
    """Maximum MiB of the records of one project's tasks. The same maximum applies separately to the records of its
    sandboxes. Further ones are rejected."""
    max_age: Annotated[Positive, Env("SANDHERD_MAX_AGE")] = 43_200
    """Maximum age of a sandbox that has no time to live of its own (`--ttl`), in seconds."""
    check_interval: Annotated[Positive, Env("SANDHERD_CHECK_INTERVAL")] = 5
    """The interval at which the monitor evaluates rules that depend on time, and runs its sweeps."""
    monitor_partitions: Annotated[int, Env("SANDHERD_MONITOR_PARTITIONS"), Field(ge=1, le=64)] = 8
    """The number of partitions into which the monitor divides sandboxes. Its replicas share them; 1: one replica
    watches all sandboxes. A replica with another number watches nothing until all with the former number have ended."""
    loop_repeats: Annotated[int, Env("SANDHERD_LOOP_REPEATS"), Field(ge=2)] = 4
    """How many equal tool calls with equal results in a row are a loop."""
    steering_cooldown: Annotated[Positive, Env("SANDHERD_STEERING_COOLDOWN")] = 300
    """How long after an intervention the next one may be sent to the same sandbox."""
    max_intervention: Annotated[SteeringStep, Env("SANDHERD_MAX_INTERVENTION")] = "nudge"
    """The strongest step of guardian rules, for tasks whose spec, profile and project set none: `observe` publishes
    what is found and sends nothing, `nudge` sends a message, `interrupt` also interrupts the agent's turn, `pause`
    pauses the sandbox and asks a user, `terminate` ends it. Rules that end sandboxes, floods and budgets always act."""
    rules: Annotated[RuleSettings, Env("SANDHERD_RULES")] = {}
    """Thresholds of the monitor's rules, and which guardian rules are off: `{"loop": {"repeats": 5}}`, or as a list,
    `loop.repeats=5,cycle=off`; docs/monitor.md lists all. It overrides the settings of single thresholds."""
    budgets: Annotated[HerdBudgets, Env("SANDHERD_BUDGETS")] = HerdBudgets()
    """Budgets of the herd, of each project and of each task, as a list such as
    `task.cost=5usd,project.day.cost=50usd,herd.month.tokens=900m`; see docs/budgets.md."""
    budget_grace: Annotated[Positive, Env("SANDHERD_BUDGET_GRACE")] = 300
    """How long an agent whose budget is exceeded may go on to end its work, before its sandbox is ended."""
    notifications: Annotated[frozenset[NotificationKind], Names, NONE, Env("SANDHERD_NOTIFICATIONS")] = frozenset(
        NotificationKind
    )
    """What the monitor publishes as `monitor.notification_published`: `recovery` when a failed attempt is retried,
    `intervention_failed` when an agent ignored the guardian or could not be reached, `coordination` when two sandboxes
    hinder each other and `conductor` is `ask` or `pause`. `none`: nothing."""

    ingest_batch: Annotated[int, Env("SANDHERD_INGEST_BATCH"), Field(ge=1, le=5000)] = 2000
    """Maximum number of events that are stored in one transaction."""

    requests_at_once: Annotated[int, Env("SANDHERD_REQUESTS_AT_ONCE"), Field(ge=1)] = 2
    """How many ordinary queries of the history a replica of event-ingest runs concurrently for one project; at most 4.
    Of the queries that may read all of a sandbox or a project, it runs one at a time for each project."""
    requests_waiting: Annotated[int, Env("SANDHERD_REQUESTS_WAITING"), Field(ge=1)] = 256
    """Maximum number of one project's requests that wait in a queue of a service. Each kind of request, or group of
    similar kinds, has its own queue. Further requests are refused with `busy`."""
    request_seconds: Annotated[Positive, Env("SANDHERD_REQUEST_SECONDS")] = 60
    """How many seconds per minute a replica of event-ingest works on requests of one project. Above it, it refuses them
    with `busy`."""
    request_rows: Annotated[int, Env("SANDHERD_REQUEST_ROWS"), Field(ge=1)] = 1_000_000
    """How many rows per minute a replica of event-ingest returns to one project. Above it, it refuses requests with
    `busy`."""

    subscriptions_per_project: Annotated[
        int, Env("SANDHERD_SUBSCRIPTIONS_PER_PROJECT"), Field(ge=0, le=len(PLACES))
    ] = 8
    """Maximum number of durable subscriptions of a project; see docs/subscribe.md."""
    subscription_ack_wait: Annotated[Positive, Env("SANDHERD_SUBSCRIPTION_ACK_WAIT")] = 30
    """After this time, an event that a subscriber has not acknowledged is redelivered."""
    subscription_idle: Annotated[Positive, Env("SANDHERD_SUBSCRIPTION_IDLE")] = 604_800
    """After this time without a fetch, a subscription is deleted."""
    subscription_warning: Annotated[Positive, Env("SANDHERD_SUBSCRIPTION_WARNING")] = 86_400
    """How long before the deletion the event `subscription.neglected` warns; at most half of `subscription_idle`."""

    @field_validator("profiles", mode="after")
    @classmethod
    def _mounts_are_allowed(cls, profiles: dict[str, Profile], info: ValidationInfo) -> dict[str, Profile]:
        allowed: frozenset[str] = info.data.get("sandbox_mounts", frozenset())
        for name, profile in profiles.items():
            for mount in profile.mounts:
                if not mount.is_within(allowed):
                    raise ValueError(f"{name} mounts {mount.source}, which is not in sandbox_mounts")
        return profiles

    @property
    def runtimes_used(self) -> frozenset[str]:
        """All runtimes that sandboxes may be in."""
        profile_runtimes = {profile.runtime for profile in self.profiles.values() if profile.runtime}
        return frozenset({self.runtime, *self.runtimes, *profile_runtimes})


def environment_names() -> dict[str, Env]:
    """The environment variable of each setting. The inherited settings, such as those of runtimes, come last."""
    general = {*ClientSettings.__annotations__, *Settings.__annotations__}
    return dict(sorted(variables_of(Settings).items(), key=lambda setting: setting[0] not in general))
