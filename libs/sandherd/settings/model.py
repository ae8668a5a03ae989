"""The settings of every part: name, environment variable, default and meaning."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sandherd.contracts.harnesses import EnvName
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.catalogue import MountSource, Profile
from sandherd.contracts.specs import Image, Limits
from sandherd.contracts.subscriptions import PLACES
from sandherd.settings.daytona import DaytonaSettings
from sandherd.settings.docker import DockerSettings
from sandherd.settings.fields import BrokerAddress, Env, Limit, Names, Positive, RuntimeName
from sandherd.settings.kubernetes import KubernetesSettings
from sandherd.settings.network import NetworkSettings
from sandherd.settings.remote import ApiAddress, RemoteSettings


def default_home() -> Path:
    """Where the local stack keeps its files, by the XDG base directory specification."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "sandherd"


class Settings(NetworkSettings, DockerSettings, DaytonaSettings, KubernetesSettings, RemoteSettings, BaseModel):
    """The settings of every part; each uses what it needs. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    nats_url: Annotated[str, Env("NATS_URL")] = "nats://127.0.0.1:4222"
    """Where the broker is; several servers are separated by commas."""
    credentials: Annotated[Path | None, Env("SANDHERD_CREDENTIALS")] = None
    """The file with this part's own NATS credential."""
    project: Annotated[SafeName, Env("SANDHERD_PROJECT")] = "default"
    """The project that tasks are submitted to."""
    home: Annotated[Path, Env("SANDHERD_HOME")] = Field(default_factory=default_home)
    """Where the local stack and the process runtime keep their files."""
    database_url: Annotated[str, Env("DATABASE_URL", secret=True)] = "postgresql://localhost/sandherd"
    """Where the history is."""
    http_host: Annotated[str, Env("SANDHERD_HTTP_HOST")] = "127.0.0.1"
    """Where a service shows /metrics, /healthz and /readyz."""
    http_port: Annotated[int, Env("SANDHERD_HTTP_PORT"), Field(ge=0, le=65535)] = 0
    """The port for that; 0 takes any free one."""
    http_port_file: Annotated[Path | None, Env("SANDHERD_HTTP_PORT_FILE")] = None
    """A file the real port is written to."""
    identity_dir: Annotated[Path | None, Env("SANDHERD_IDENTITY_DIR")] = None
    """The spawner's signing keys."""
    toolchains: Annotated[Path | None, Env("SANDHERD_TOOLCHAINS")] = None
    """Where `sandherd harness install` puts the SDKs of agents; nothing: `toolchains` in the home."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Env("SANDHERD_LOG_LEVEL")] = "info"
    """The least severe log line that is written."""
    otlp_endpoint: Annotated[str | None, Env("OTEL_EXPORTER_OTLP_ENDPOINT")] = None
    """An OTLP/HTTP collector that services export traces and metrics to; without it /metrics is all there is."""
    sandbox_otlp_endpoint: Annotated[ApiAddress | None, Env("SANDHERD_SANDBOX_OTLP_ENDPOINT")] = None
    """One that agents in sandboxes may export to; without it a sandbox speaks to the broker only."""

    max_sandboxes: Annotated[int, Env("SANDHERD_MAX_SANDBOXES"), Field(ge=1)] = 8
    """How many sandboxes may live at once."""
    max_sandboxes_per_project: Annotated[Limit, Env("SANDHERD_MAX_SANDBOXES_PER_PROJECT")] = None
    """How many of one project may; nothing: as many as in all."""
    project_limits: Annotated[dict[SafeName, Limit], Env("SANDHERD_PROJECT_LIMITS")] = {}
    """The same for single projects."""
    runtime_limits: Annotated[dict[SafeName, Limit], Env("SANDHERD_RUNTIME_LIMITS")] = {}
    """How many sandboxes may live in each runtime; one that is not named: as many as in all."""
    priority_age: Annotated[Positive, Env("SANDHERD_PRIORITY_AGE")] = 3600
    """How much waiting, in seconds, a step of priority is worth; see docs/scheduling.md."""
    max_attempts: Annotated[int, Env("SANDHERD_MAX_ATTEMPTS"), Field(ge=1, le=20)] = 3
    """How often a task is tried that does not say so itself; only what may go well another time is."""
    attempt_timeout: Annotated[Positive | None, Env("SANDHERD_ATTEMPT_TIMEOUT")] = None
    """How long an attempt may take that has no limit of its own; nothing: as long as a sandbox may live."""
    runtime: Annotated[RuntimeName, Env("SANDHERD_RUNTIME")] = "process"
    """Where sandboxes run that name no runtime."""
    runtimes: Annotated[frozenset[RuntimeName], Names, Env("SANDHERD_RUNTIMES")] = frozenset()
    """Further runtimes that sandboxes may name; the usual one, and those of the profiles, are there without that."""
    sandbox_image: Annotated[Image | None, Env("SANDBOX_IMAGE")] = None
    """The image of sandboxes that name none, where a runtime makes them of images."""
    sandbox_nats_url: Annotated[BrokerAddress | None, Env("SANDHERD_SANDBOX_NATS_URL")] = None
    """Where sandboxes find the broker that run elsewhere than on this host; nothing: where the services find it."""
    sandbox_memory_gb: Annotated[float, Env("SANDBOX_MEMORY_GB"), Field(ge=0.0625, le=64)] = 2
    """The memory of a sandbox whose limits are not given."""
    sandbox_cores: Annotated[float | None, Env("SANDBOX_CPU"), Field(ge=0.05, le=256)] = None
    """The cores of a sandbox whose limits do not name any; nothing: as many as its runtime gives."""
    sandbox_disk_mb: Annotated[int, Env("SANDHERD_SANDBOX_DISK_MB"), Field(ge=0, le=16_777_216)] = 0
    """The size of the file system that each sandbox of the process runtime has to itself, in MiB; 0: the disk of
    sandboxes is not limited, which `sandherd runtimes` shows. Only a spawner that is root can make one."""
    caps: Annotated[Limits, Env("SANDHERD_CAPS")] = Limits(
        memory_mb=65_536, cpu_seconds=604_800, open_files=65_536, processes=32_768
    )
    """The most that a sandbox may be given."""
    forward_env: Annotated[frozenset[EnvName], Names, Env("SANDHERD_FORWARD_ENV")] = frozenset()
    """Names of the spawner's own variables that every sandbox gets, as secrets; profiles may name further ones."""
    sandbox_mounts: Annotated[frozenset[MountSource], Names, Env("SANDHERD_SANDBOX_MOUNTS")] = frozenset()
    """What profiles may mount: names of volumes, and folders of the host with all that is below them."""
    profiles: Annotated[dict[SafeName, Profile], Env("SANDHERD_PROFILES")] = {}
    """Named kinds of sandboxes: runtime, limits, variables, and how many are kept started beforehand."""
    max_ttl: Annotated[Positive, Env("SANDHERD_MAX_TTL")] = 604_800
    """The longest that a sandbox may live, with all its extensions."""
    max_file_mb: Annotated[int, Env("SANDHERD_MAX_FILE_MB"), Field(ge=1, le=1024)] = 256
    """The largest file, or archive of a folder, that is put into a sandbox or taken out."""
    max_work_mb: Annotated[int, Env("SANDHERD_MAX_WORK_MB"), Field(ge=0, le=1024)] = 64
    """The largest archive of a failed attempt's work tree that is kept for the next attempt; 0 keeps none."""
    orphan_grace: Annotated[Positive, Env("SANDHERD_ORPHAN_GRACE")] = 60
    """How long after it was found an orphan is removed."""
    isolation: Annotated[Literal["auto", "bubblewrap", "weak", "none"], Env("SANDHERD_ISOLATION")] = "auto"
    """How the process runtime isolates. Where the host can't isolate sandboxes, `auto` refuses to start any,
    `bubblewrap` also refuses to start the spawner, and `weak` starts them with what isolation there is, with a warning
    each time. `none` is for tests."""
    sandbox_uid_first: Annotated[int, Env("SANDHERD_SANDBOX_UID_FIRST"), Field(ge=1000, le=2_147_000_000)] = (
        1_879_048_192
    )
    """The first host uid and gid for sandboxes of the process runtime, where the spawner is root."""
    sandbox_uid_count: Annotated[int, Env("SANDHERD_SANDBOX_UID_COUNT"), Field(ge=16, le=1_000_000)] = 65_536
    """How many host uids are reserved for sandboxes, from the first one on; each sandbox has one of its own."""
    stop_grace: Annotated[Positive, Env("SANDHERD_STOP_GRACE")] = 10
    """How long a sandbox may take to stop by itself."""
    spawn_timeout: Annotated[Positive, Env("SANDHERD_SPAWN_TIMEOUT")] = 60
    """How long a sandbox may take until its worker speaks."""
    keep_ended: Annotated[Positive, Env("SANDHERD_KEEP_ENDED")] = 86_400
    """How long ended tasks and sandboxes stay in the live buckets."""
    keep_secrets: Annotated[Annotated[float, Field(ge=0)], Env("SANDHERD_KEEP_SECRETS")] = 3600
    """How long secrets of a task that failed or was cancelled stay stored, encrypted, for a retry; 0: not at all."""
    worker_credential_life: Annotated[Positive, Env("SANDHERD_WORKER_CREDENTIAL_LIFE")] = 3600
    """How long a worker's credential is good; it is renewed at half of that."""
    heartbeat_interval: Annotated[Positive, Env("HEARTBEAT_INTERVAL")] = 30
    """How often a worker says that it lives."""

    dead_after: Annotated[Positive, Env("SANDHERD_DEAD_AFTER")] = 90
    """A sandbox that says nothing for so long is dead."""
    idle_after: Annotated[Positive, Env("SANDHERD_IDLE_AFTER")] = 600
    """A sandbox without work, and with nothing in flight, for so long is idle."""
    stuck_after: Annotated[Positive, Env("SANDHERD_STUCK_AFTER")] = 900
    """A tool or model call in flight for so long is stuck."""
    finished_after: Annotated[Positive, Env("SANDHERD_FINISHED_AFTER")] = 300
    """A sandbox whose agent has ended, and that got no message for so long, is finished."""
    flood_mb: Annotated[int, Env("SANDHERD_FLOOD_MB"), Field(ge=1)] = 256
    """A sandbox that says more than so many MiB within a minute floods the stream that all share, and is ended."""
    flood_messages: Annotated[int, Env("SANDHERD_FLOOD_MESSAGES"), Field(ge=1000)] = 1000
    """The messages per second that a sandbox may publish for long; what it publishes beyond that is handled later, and
    a sandbox that is 10 seconds' worth ahead of it is cut off. Sandherd's worker stays below 800."""
    flood_project_messages: Annotated[int, Env("SANDHERD_FLOOD_PROJECT_MESSAGES"), Field(ge=1000)] = 10_000
    """The same for all sandboxes of a project together; the one that publishes most is cut off."""
    person_connections: Annotated[int, Env("SANDHERD_PERSON_CONNECTIONS"), Field(ge=1)] = 100
    """How many connections may be open with one person's credential; further ones are closed."""
    dead_letters_per_minute: Annotated[int, Env("SANDHERD_DEAD_LETTERS_PER_MINUTE"), Field(ge=1)] = 60
    """How many dead letters of one sandbox are stored within a minute; further ones are only counted."""
    open_approvals: Annotated[int, Env("SANDHERD_OPEN_APPROVALS"), Field(ge=1)] = 100
    """How many approvals of one sandbox may wait for an answer; further ones are denied at once."""
    project_messages: Annotated[int, Env("SANDHERD_PROJECT_MESSAGES"), Field(ge=1)] = 2000
    """How many messages may wait for the sandboxes of one project; further ones are rejected."""
    project_records_mb: Annotated[int, Env("SANDHERD_PROJECT_RECORDS_MB"), Field(ge=1)] = 128
    """How many MiB the stored tasks of one project may take, and the same for its sandboxes; further ones are rejected.
    """
    max_age: Annotated[Positive, Env("SANDHERD_MAX_AGE")] = 43_200
    """The greatest age of a sandbox."""
    check_interval: Annotated[Positive, Env("SANDHERD_CHECK_INTERVAL")] = 5
    """How often the clock-driven rules and sweeps run."""
    loop_repeats: Annotated[int, Env("SANDHERD_LOOP_REPEATS"), Field(ge=2)] = 4
    """So many equal tool calls with equal results in a row are a loop."""
    steering_cooldown: Annotated[Positive, Env("SANDHERD_STEERING_COOLDOWN")] = 300
    """How long after a steering the next one may be said to the same sandbox."""

    ingest_batch: Annotated[int, Env("SANDHERD_INGEST_BATCH"), Field(ge=1, le=5000)] = 500
    """How many events are stored in one transaction at the most."""

    requests_at_once: Annotated[int, Env("SANDHERD_REQUESTS_AT_ONCE"), Field(ge=1)] = 2
    """How many requests of one project a replica of event-ingest answers from the history at once; at most 4."""
    requests_waiting: Annotated[int, Env("SANDHERD_REQUESTS_WAITING"), Field(ge=1)] = 256
    """How many requests of one project may wait at a service, in each lane; further ones are answered with `busy`."""
    request_seconds: Annotated[Positive, Env("SANDHERD_REQUEST_SECONDS")] = 60
    """How many seconds a minute a replica of event-ingest works on the requests of one project; then `busy`."""
    request_rows: Annotated[int, Env("SANDHERD_REQUEST_ROWS"), Field(ge=1)] = 1_000_000
    """How many rows a minute it gives to one project; then `busy`."""

    subscriptions_per_project: Annotated[
        int, Env("SANDHERD_SUBSCRIPTIONS_PER_PROJECT"), Field(ge=0, le=len(PLACES))
    ] = 8
    """How many durable subscriptions a project may have; see docs/subscribe.md."""
    subscription_ack_wait: Annotated[Positive, Env("SANDHERD_SUBSCRIPTION_ACK_WAIT")] = 30
    """An event that a subscriber has not acknowledged for so long is given again."""
    subscription_idle: Annotated[Positive, Env("SANDHERD_SUBSCRIPTION_IDLE")] = 604_800
    """A subscription from which nothing was taken for so long is gone."""

    @field_validator("profiles", mode="after")
    @classmethod
    def _mounts_are_allowed(cls, profiles: dict[str, Profile], found: ValidationInfo) -> dict[str, Profile]:
        allowed: frozenset[str] = found.data.get("sandbox_mounts", frozenset())
        for name, profile in profiles.items():
            for mount in profile.mounts:
                if not mount.is_within(allowed):
                    raise ValueError(f"{name} mounts {mount.source}, which sandbox_mounts does not name")
        return profiles

    @property
    def runtimes_used(self) -> frozenset[str]:
        """All runtimes that sandboxes may be in."""
        of_profiles = {profile.runtime for profile in self.profiles.values() if profile.runtime}
        return frozenset({self.runtime, *self.runtimes, *of_profiles})

    @property
    def toolchain_dir(self) -> Path:
        """Where the SDKs of agents are."""
        return (self.toolchains or self.home / "toolchains").resolve()


def environment_names() -> dict[str, Env]:
    """The environment variable of each setting; those of the single runtimes come last."""
    fields = sorted(Settings.model_fields.items(), key=lambda field: field[0] not in Settings.__annotations__)
    return {name: next(item for item in field.metadata if isinstance(item, Env)) for name, field in fields}
