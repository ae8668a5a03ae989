"""The page of runtimes: where sandboxes can run, how to choose one, and what each can do."""

import errno
from typing import Final

from pages import EMPTY, page, table

from spawner.runtimes.boxes.provider import Abilities, ProviderFault
from spawner.runtimes.boxes.runtime_errors import RUNTIME_FAULTS
from spawner.runtimes.daytona.provider import DaytonaProvider
from spawner.runtimes.docker.provider import DockerProvider
from spawner.runtimes.kubernetes.provider import PodProvider
from spawner.runtimes.remote.provider import RemoteProvider
from spawner.runtimes.syscall_filter import RULES

BOXES: Final[dict[str, tuple[str, Abilities]]] = {
    DockerProvider.name: ("a container of a Docker Engine", DockerProvider.abilities),
    DaytonaProvider.name: ("a Daytona sandbox, created from an image", DaytonaProvider.abilities),
    f"{DaytonaProvider.name}, with a snapshot": (
        "a Daytona sandbox, created from that snapshot",
        DaytonaProvider.of_snapshots,
    ),
    RemoteProvider.name: ("a runtime of OpenHands' Runtime API", RemoteProvider.abilities),
    PodProvider.name: ("a pod of a Kubernetes cluster, or a `Sandbox` of agents.x-k8s.io", PodProvider.abilities),
}
PROCESS: Final = ("processes on the spawner's own host, under bubblewrap", Abilities(pause=True, ports=True))
CAN: Final[dict[str, str]] = {
    "pause": "pause",
    "memory_limit": "memory limit",
    "process_limit": "process limit",
    "cpu_limit": "CPU limit",
    "mounts": "mounts",
    "ports": "ports",
}
"""The columns of capabilities, by field of `Abilities`."""
FAULTS: Final[dict[ProviderFault, str]] = {
    ProviderFault.NOT_FOUND: "the sandbox does not exist any more",
    ProviderFault.QUOTA: "the account or the engine has no capacity left",
    ProviderFault.RATE_LIMITED: "too many requests; the spawner retries after the time that the provider states",
    ProviderFault.REFUSED: "a wrong key, a missing permission, a missing image, or a request that is not possible",
    ProviderFault.TRANSIENT: "the provider is unavailable at present, or does not respond; the spawner retries",
    ProviderFault.TIMED_OUT: "the request timed out and may still succeed; the spawner checks this before it retries",
}
CHOOSING: Final = """## Choosing one

`SANDHERD_RUNTIME` sets the default runtime; `SANDHERD_RUNTIMES` lists further ones that specs and profiles may use.
`sandherd runtimes` shows the runtimes of a herd and their capabilities.

```sh
.venv/bin/sandherd config show -o json | grep '"runtime"'
```

The spawner uses all runtimes through the same interface, and all pass the same tests (`tests/integration/runtimes`).
The runtime `docker` is tested with a real engine. `daytona`, `remote` and `kubernetes` are tested with simulated
services: the vendor's own client connects to them, and their replies are checked against the vendor's own models.

Each runtime needs these settings:

| runtime | settings | description |
|---|---|---|
| process | none | below, and [operating.md](operating.md) |
| docker | `DOCKER_HOST`, `SANDBOX_IMAGE`, `SANDHERD_DOCKER_NETWORK` | below |
| daytona | `DAYTONA_API_KEY`, and `SANDHERD_DAYTONA_SNAPSHOT` or `SANDBOX_IMAGE` | below |
| remote | `SANDBOX_REMOTE_RUNTIME_API_URL`, `SANDBOX_API_KEY`, `SANDBOX_IMAGE` | [remote.md](remote.md) |
| kubernetes | `SANDBOX_IMAGE`, `SANDHERD_KUBERNETES_NAMESPACE` | [kubernetes.md](kubernetes.md) |

The extras `sandherd-spawner[daytona]` and `sandherd-spawner[kubernetes]` install the clients of Daytona and Kubernetes.
Other Python distributions can add runtimes: [plugins.md](plugins.md).
`SANDHERD_SANDBOX_NATS_URL` is the broker's address for sandboxes that do not run on the spawner's host.
"""
ABLE: Final = """## Capabilities

An empty cell means that the runtime does not have the capability. Without `memory limit` or `process limit`, the memory
or the processes of a sandbox are not limited. A request for any other missing capability is refused with an error that
names it.
"""
PORTS: Final = """The following table shows which ports of a sandbox can be reached, from where, and which header a
request needs:

| runtime | address | ports | from | header |
|---|---|---|---|---|
| process | `http://127.0.0.1:PORT`, not the port inside | any, 16 at one time | the spawner's host | none |
| docker | the container's address in the engine's network, if it has one | any | that network | none |
| daytona | Daytona's preview URL | any | everywhere | `x-daytona-preview-token`, a secret |
| remote | the Runtime API's `work_hosts` | the ports in `work_hosts` | everywhere | none |
| kubernetes | the pod's address | `SANDHERD_KUBERNETES_PORTS` | what `SANDHERD_KUBERNETES_INGRESS` allows | none |

If only some ports can be reached, the worker starts its [agent server](operating.md#an-agent-server-in-it) on one of
them. A request for another port is refused; the error states how to open the port, or which ports can be reached.
"""
WORKER: Final = """## The worker in a sandbox

An image built with [`sandherd image build`](operating.md#images-of-sandboxes) contains the worker. Into a sandbox with
another image, the spawner uploads the worker (about 25 MB); the image then needs Python of the same minor version as
the spawner's. The worker's supervisor is the first process of the sandbox. It reaps processes and forwards signals. If
a worker was lost, it starts another one to publish undelivered events.
"""
FAILING: Final = """## Errors

A *provider* is the engine or service that a runtime uses. Every error of a provider belongs to one of the following
classes, which determines the `error_type` in the events of a task ([errors.md](errors.md)). The error's text is that of
the provider, without credentials.
"""
NETWORK: Final = """## Network of the process runtime

Each sandbox has its own network namespace. The namespace has no interface to the host or to a network. A forwarder
process on the host accepts the sandbox's TCP connections inside the namespace, checks the destination address, and
connects to the destination from the host. `SANDHERD_SANDBOX_NETWORK` sets the mode, which determines the allowed
destinations. A profile can override it (`network: {mode, allow, endpoints}`); a task can only choose a profile.

| mode | what a sandbox can reach | what this exposes to the sandbox |
|---|---|---|
| `internet` (default) | public addresses | the internet; names that only the host's resolvers know |
| `allow` | the hosts in `SANDHERD_SANDBOX_ALLOW` | all services at the addresses and ports of these hosts |
| `none` | nothing | nothing |
| `host` | all that the host can reach | loopback services, private networks, cloud metadata, other sandboxes |

With `host` there is no network namespace, and a warning is logged for each sandbox. In every mode a sandbox can reach
the broker, the collector in `SANDHERD_SANDBOX_OTLP_ENDPOINT`, and the declared endpoints in
`SANDHERD_SANDBOX_ENDPOINTS` (`127.0.0.1:11434,db.internal:5432`). It can reach exactly these hosts and ports. A
declared port of the host's loopback address has the same address inside the sandbox.

If a task's variables, such as `ANTHROPIC_BASE_URL`, `LLM_BASE_URL` or `HTTPS_PROXY`, contain a private or loopback
address, declare this address as an endpoint. It is not declared by the variable alone, because a proxy or a gateway may
give access to more than intended. A connection to a destination that is not allowed is reset. The first 200 such
destinations are logged, each once, in `network.log`, in the folder of the sandbox's run.

- The forwarder checks the address of each connection, never a name. So a public name that resolves to a private address
  is refused. Private addresses are loopback, RFC 1918, shared (100.64.0.0/10), link-local, unique local, multicast and
  reserved addresses, cloud metadata addresses, the host's own addresses, and IPv6 addresses that embed any of these.
  The public addresses of your own site count as internet: list those that sandboxes must not reach in
  `SANDHERD_SANDBOX_DENY`.
- In mode `allow`, an allowed name permits the addresses to which the forwarder has resolved the name for this sandbox,
  each for at least an hour. Other names are not resolved. DNS is served over UDP only, and only queries are forwarded.
  A TCP connection to port 53 is checked like any other.
- The forwarder forwards TCP and DNS. It drops other UDP, such as QUIC, and ICMP; clients of HTTP/3 fall back to TCP.
  IPv6 works if the host has a route to the destination. The forwarder accepts a connection before it knows whether the
  destination responds, so a client sees a reset instead of a refused connection if the host is unreachable.
- A sandbox can have at most 512 connections and 64 pending DNS queries. It can open a burst of 600 connections, and
  then 100 per second. A connection is closed if it has no traffic for four hours, or is half closed for 15 minutes.
- If a forwarder is killed, it is restarted, and its connections are lost. It runs as long as its sandbox, also while no
  spawner runs. It is in the sandbox's control groups. If the sandbox has its own host uid, the forwarder runs under it.

The forwarder is part of Sandherd (`sandherd_network`): no package that pip installs contains pasta or slirp4netns, and
neither of them filters by destination. It needs no TUN device, and no privileges except in the sandbox's own user
namespace. It needs `nf_tables` with `nft_tproxy` in the kernel. If something is missing, no sandbox is started, and
`sandherd runtimes` shows the reason. `SANDHERD_SANDBOX_NETWORK=host` does not need them.
"""
PROCESSES: Final = """## Isolation of the process runtime

Bubblewrap isolates each sandbox. A sandbox has its own user, process, mount, IPC, host name and control group
namespaces and a new session keyring. It has no capabilities and can't get new privileges. Its file system is read-only
except for its own directories, which are mounted `nosuid` and `nodev`. Inside the sandbox, processes have the uid 1000.
The uid on the host depends on the spawner's user:

| the spawner runs as | sandboxes run as | separated from other sandboxes by |
| --- | --- | --- |
| root | a host uid and gid of their own | uid, namespaces, seccomp, Landlock |
| another user who has subordinate ids | a subordinate uid and gid of their own | uid, namespaces, seccomp, Landlock |
| another user | that user | namespaces, seccomp, Landlock |

`sandherd runtimes` shows this as `HOST UID` (`own`, `subordinate`, `spawner`; `root` only with weak isolation), and
`sandherd doctor` as `sandbox host uid`.

If the spawner is root, `SANDHERD_SANDBOX_UID_FIRST` and `SANDHERD_SANDBOX_UID_COUNT` set the range of the host uids. At
its start, the spawner checks that the range exists on this host (`/proc/self/uid_map`) and contains no id of
`/etc/passwd`, `/etc/group`, `/etc/subuid` and `/etc/subgid`. Each uid in use is reserved by a file in
`/run/sandherd/uids`, so that no two sandboxes on this host have the same uid, even if they have different spawners.
When a spawner starts, it removes the reservations of sandboxes whose directory no longer exists, unless a process still
runs under the uid. Spawners in containers that do not share `/run` need different ranges.

The directory of the Python interpreter, of packages or of toolchains may be inside a directory that only root can
enter, such as `/root`. Their files must be readable by every user.

### Start by fork

A worker that loads its Python modules itself starts slowly. Therefore the spawner starts one process, the *fork
server*, that loads the modules once, and forks each worker from it. The fork server is started for the first sandbox,
so the first sandbox starts slowly. `START` in `sandherd runtimes` shows whether workers are started by `fork` or by
`exec`.

A sandbox starts in three steps:

1. Bubblewrap creates the namespaces of the sandbox and starts a small program in them, the *stub*.
2. The fork server forks a child. The child joins the control groups and the namespaces of the stub, and drops the same
   privileges that bubblewrap drops.
3. The child becomes the worker. If any step fails, the stub starts the worker by exec.

If the fork server ends, running sandboxes continue, and a new fork server is started for the next sandbox. Commands of
`sandherd exec` that run at this moment end.

Network forwarders are forked likewise, from a fork server of their own, if sandboxes have control groups. It has only
the modules of the forwarder, no variable but `PATH` and `LANG`, and other memory addresses than workers, whose agents
may know those of their own. A forwarder that is killed, or that can't be forked, is started by exec.

The start by fork has these consequences for the isolation of sandboxes:

- The fork server is a separate program. Its environment is `PATH`, `LANG` and, if it is set, the worker's `PYTHONPATH`.
  It has no memory, variable or file descriptor of the spawner, and therefore none of the spawner's secrets.
- The fork server itself reads no requests. Each child starts in the same state, without data of another sandbox.
- Memory addresses, the stack canary and Python's hash seed are the same in all workers of one fork server. An agent
  can't read the memory of its worker, but if it learns an address of its worker, the address is valid in other workers.
  Random numbers differ: each worker seeds the generators of Python, OpenSSL and `tempfile` again.
- A *holder* process, between the first process of the sandbox and the worker, reports the worker's exit status. It has
  no capabilities, and processes of the sandbox can neither read nor trace it. On kernels without Landlock scopes
  (before 6.12), processes of the sandbox can trace the stub, and so report a false exit status of their own worker.
- If a child hangs before it becomes a worker, only its own sandbox is delayed. The child ends together with the
  sandbox. Without control groups, it ends as soon as it continues.

### Subordinate uids

If the spawner does not run as root, it gives each sandbox one of the user's subordinate uids. So each sandbox has its
own host uid also without root. This needs:

- a range of at least 1,024 ids for the user in `/etc/subuid` and in `/etc/subgid`, which no other user has. Each
  sandbox uses one id. If there are several ranges, the largest is used. `useradd` adds a range of 65,536 ids for a new
  user. For an existing user, add one as root: `usermod --add-subuids 300000-365535 --add-subgids 300000-365535 USER`;
- `newuidmap` and `newgidmap` (Debian's package `uidmap`, elsewhere `shadow-utils`);
- an entry for the user in `/etc/passwd`, and a home directory in which the spawner can create
  `.local/state/sandherd/uids`. All spawners of the user reserve uids there. Hosts must not share this home directory;
- a file system for `SANDHERD_HOME` on which files can belong to those ids, which excludes most network file systems;
- one of the directories `/media`, `/mnt`, `/srv` and `/opt` that contains nothing that sandboxes need. Sandboxes can't
  see this directory.

No setting is needed. The spawner moves into a user namespace in which only its user and these ids exist. It stays the
same user, and gets permissions over these ids only. A restarted spawner joins the namespace of the sandboxes that still
run. If a requirement is missing, sandboxes run under the user's own uid, and `sandherd runtimes` and `sandherd doctor`
state the reason as a gap. A restarted spawner continues without subordinate uids as long as sandboxes run that were
started without them. After `sandherd down`, the spawner checks the requirements again.

While a sandbox exists, its files belong to its uid. `sandherd down` changes the owner of remaining files to the user,
who can then remove `SANDHERD_HOME` like any directory. Run `sandherd down` before you remove the ids or the programs,
before you downgrade to a version without subordinate uids, and before you remove `SANDHERD_HOME`. Rootless containers
of the same user use the same range, so a container may have the uid of a sandbox. Limits of memory, cores and disk are
the same as without subordinate uids.

### Processes of one sandbox

The worker and its agents have the same uid. An agent can't trace the worker or open its files in `/proc`, because the
worker is not dumpable. It can't send signals to the worker, because each program that the worker starts is in its own
Landlock domain (Linux 6.12 or later). Commands of `sandherd exec` are in their own domains, too. They see the agent's
processes, but can't send signals to them.

### Hosts without full isolation

If a host can't isolate sandboxes, the runtime starts none, and the error names the cause. With
`SANDHERD_ISOLATION=weak` it starts them with the isolation that the host supports, and the spawner logs a warning at
each start. `sandherd runtimes` and `sandherd doctor` list the missing parts of the isolation. They also show whether
the disk space of sandboxes is limited. If the host can't give sandboxes their own network, no sandbox starts either,
unless `SANDHERD_SANDBOX_NETWORK=host` lets them use the host's network.

A profile with `user_namespaces = true` lets programs create user namespaces and mount in them, as Chromium's sandbox
and rootless Podman do. This gives the agent access to the kernel's namespace, mount and file system code, in which many
local root exploits were found. If the spawner is root, such an exploit still starts from an unprivileged uid. Profiles
are declared in the herd's settings only, so a task can't give itself this permission.

### System calls

The seccomp filter is the same for workers, agents, agent servers, warm sandboxes and commands of `sandherd exec`. It
supports x86_64 and aarch64. It kills a program that uses another calling convention. System calls that are newer than
Linux 6.17 fail with ENOSYS. The filter denies:
"""
NOTES: Final = """## Docker

A container has no capabilities and can't get new privileges. It runs under the sandboxes' user, with a read-only root
file system, and its memory, processes and open files are limited. `/sandherd` is a volume with the sandbox's name; it
is removed together with the sandbox. When the container starts, the sandbox's files, including the credential, are sent
to its standard input, so they are in no variable, argument, label or log.

A container is not created from the image of the task itself. From that image, the spawner builds another one with the
tag `sandherd-ready:…`, once per engine. It adds the sandbox's empty folders, and the worker if the image lacks it. The
original image can still be removed by its name. `docker image prune --all` removes images that no container needs any
more.

Mounts of a profile have the same owner and mode as on the host. A volume that the engine has just created belongs to
root, and a sandbox can only read it. To let sandboxes write to it, first change its owner to the sandboxes' user (1000,
or `SANDHERD_DOCKER_USER`).

A container continues to run if its spawner or the whole stack ends; the next spawner finds it and continues with it.
`sandherd down` stops it gracefully and does not remove it. The next `sandherd up` receives the events that it has not
published yet, and then removes it.

When an engine is stopped or crashes, its containers end. The attempt fails with `stopped` if the worker could still
report this. Otherwise it fails with `worker_lost`, which another worker reports when the engine runs again. The next
attempt repeats the task. Sandboxes that were requested meanwhile are created when the engine runs again. If another
program removes a container, the spawner creates it again from its volume to publish undelivered events. If the volume
is missing, too, the attempt fails with `sandbox_lost`. `live-restore` is not tested.

## Daytona

Sandherd sets a sandbox's name and label, so that it finds a sandbox even if the response to its creation was lost. If a
snapshot is not active, creation is refused with an error that names the snapshot.

A snapshot defines its own memory and cores. So the memory limit of a spec is not enforced for sandboxes of a snapshot,
and a spec with cores is refused. If `SANDHERD_DAYTONA_SNAPSHOT` is set, the runtime is shown without the capability to
limit memory. A spec that names an image gets its memory limit nevertheless, in whole GiB.

`SANDHERD_DAYTONA_AUTO_STOP` is 0 by default, because Daytona does not count background processes as activity. Daytona
does not report the end of a program, so the spawner checks for it every `SANDHERD_DAYTONA_LOOK_INTERVAL` seconds.

Daytona requires one token for all ports of a sandbox, including the port of its toolbox. So the holder of the token may
run commands in the sandbox. The token can't be revoked; it changes at the next start of the sandbox. Sandherd returns
it only together with the key of an agent server, to clients that may run commands in the project anyway.
"""


def runtimes() -> str:
    """The complete page."""
    intro = "A runtime is where sandboxes are created: processes, containers, pods, or a cloud service.\n"
    return page(
        "Runtimes",
        "services/spawner/spawner/runtimes",
        intro,
        CHOOSING,
        ABLE,
        abilities_table(),
        PORTS,
        NETWORK,
        WORKER,
        FAILING,
        table(
            ("provider", "error_type", "meaning"),
            ((fault, RUNTIME_FAULTS[fault], FAULTS[fault]) for fault in ProviderFault),
        ),
        PROCESSES,
        filter_table(),
        NOTES,
    )


def filter_table() -> str:
    """What the seccomp filter of the process runtime denies."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for rule in RULES:
        rows.setdefault((rule.group, rule.when or "always", errno.errorcode[rule.error]), []).append(rule.syscall)
    calls = (
        (group, ", ".join(f"`{name}`" for name in names), when, error) for (group, when, error), names in rows.items()
    )
    return table(("what", "system calls", "denied", "error"), calls)


def abilities_table() -> str:
    """The capabilities of each runtime, as declared in its code."""
    head = ("runtime", "a sandbox is", *CAN.values())
    return table(head, (_row(name, *what) for name, what in {"process": PROCESS, **BOXES}.items()))


def _row(name: str, what: str, able: Abilities) -> tuple[str, ...]:
    return (name, what, *("yes" if getattr(able, field) else EMPTY for field in CAN))
