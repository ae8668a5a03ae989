"""The page of runtimes: where sandboxes can run, how to choose one, and what each can do."""

import errno
from typing import Final

from pages import EMPTY, page, table

from spawner.runtimes.boxes.provider import Abilities, ProviderFault
from spawner.runtimes.boxes.runtime_errors import AS
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
    ProviderFault.QUOTA: "no capacity left in this account, or on this engine",
    ProviderFault.RATE_LIMITED: "too many requests: retried after the time that the provider gives",
    ProviderFault.REFUSED: "a wrong key, a missing permission, a missing image, something that is not possible",
    ProviderFault.TRANSIENT: "unavailable at present, or no response: retried",
    ProviderFault.TIMED_OUT: "timed out, and may still succeed: checked before it is retried",
}
CHOOSING: Final = """## Choosing one

`SANDHERD_RUNTIME` sets the default runtime; `SANDHERD_RUNTIMES` lists further ones that specs and profiles may use.
`sandherd runtimes` shows those of a herd, with what each can do there.

```sh
.venv/bin/sandherd config show -o json | grep '"runtime"'
```

The spawner uses the same interface for all of them, and they pass the same tests (`tests/integration/runtimes`):
Docker's on a real engine, Daytona's, the Runtime API's and Kubernetes' on doubles that serve the vendor's own client
and are checked against the vendor's own models. What they need:

| runtime | setting | more |
|---|---|---|
| process | none | below, and [operating.md](operating.md) |
| docker | `DOCKER_HOST`, `SANDBOX_IMAGE`, `SANDHERD_DOCKER_NETWORK` | below |
| daytona | `DAYTONA_API_KEY`, and `SANDHERD_DAYTONA_SNAPSHOT` or `SANDBOX_IMAGE` | below |
| remote | `SANDBOX_REMOTE_RUNTIME_API_URL`, `SANDBOX_API_KEY`, `SANDBOX_IMAGE` | [remote.md](remote.md) |
| kubernetes | `SANDBOX_IMAGE`, `SANDHERD_KUBERNETES_NAMESPACE` | [kubernetes.md](kubernetes.md) |

Daytona's and Kubernetes' clients are installed with `sandherd-spawner[daytona]` and `sandherd-spawner[kubernetes]`.
Other distributions can add runtimes: [plugins.md](plugins.md).
`SANDHERD_SANDBOX_NATS_URL` is the broker's address for sandboxes that do not run on this host.
"""
ABLE: Final = """## Capabilities

Without a mark, the command is refused with an error that says so; memory and processes are then not limited.
"""
PORTS: Final = """Which ports of a sandbox can be reached, from where, and with which header:

| runtime | address | ports | from | header |
|---|---|---|---|---|
| process | `http://127.0.0.1:PORT`, not the port inside | any, 16 at one time | the spawner's host | none |
| docker | the container's address in the engine's network, if it has one | any | that network | none |
| daytona | Daytona's preview URL | any | everywhere | `x-daytona-preview-token`, a secret |
| remote | the Runtime API's `work_hosts` | those in it | everywhere | none |
| kubernetes | the pod's address | `SANDHERD_KUBERNETES_PORTS` | what `SANDHERD_KUBERNETES_INGRESS` allows | none |

A worker that is given the list of ports starts its [agent server](operating.md#an-agent-server-in-it) on one of them. A
request for a port that can't be reached is refused, with how to open it or with the ports that can be reached.
"""
WORKER: Final = """## The worker in a sandbox

An image built with [`sandherd image build`](operating.md#images-of-sandboxes) contains the worker. To other images it
is uploaded: about 25 MB, for a Python there with the spawner's own minor version. Its supervisor is the first process:
it reaps, forwards signals, and, if a worker was lost, starts another one to publish undelivered events.
"""
FAILING: Final = """## Errors

Every error of a provider is mapped to one of these. The events of a task have it as `error_type`
([errors.md](errors.md)); the error's text is the provider's own, without any credential.
"""
NETWORK: Final = """## Network of the process runtime

Each sandbox has a network namespace of its own, without any interface that leads out. A forwarder process on the host
accepts its TCP connections inside the namespace, checks the destination address, and makes the connection from the
host. `SANDHERD_SANDBOX_NETWORK` selects what is allowed, and a profile can override it (`network: {mode, allow,
endpoints}`); a task can only choose among profiles.

| mode | what a sandbox can reach | what that exposes |
|---|---|---|
| `internet` (default) | public addresses | the internet; names that only the host's resolvers know |
| `allow` | the hosts in `SANDHERD_SANDBOX_ALLOW` | whatever is served at their addresses and ports |
| `none` | nothing | nothing |
| `host` | all that the host reaches | its loopback services, private networks, metadata, sandboxes |

With `host` there is no namespace, and a warning is logged for each sandbox. In every mode a sandbox reaches the
broker, the collector in `SANDHERD_SANDBOX_OTLP_ENDPOINT`, and the endpoints in `SANDHERD_SANDBOX_ENDPOINTS`
(`127.0.0.1:11434,db.internal:5432`): exactly these hosts and ports. A declared port of the host's loopback has the same
address inside. Declare private and loopback addresses in a task's variables, such as `ANTHROPIC_BASE_URL`,
`LLM_BASE_URL` or `HTTPS_PROXY`: a variable alone declares nothing, as a proxy or a gateway may give access to more than
intended. A destination without a declaration is refused by a connection reset, and logged once in `network.log` in the
folder of the sandbox's run.

- The decision is made on the address of each connection, never on a name: a public name that resolves to a private
  address is refused. Private are loopback, RFC 1918, shared (100.64.0.0/10), link-local, unique local, multicast and
  reserved addresses, cloud metadata addresses, the host's own addresses, and IPv6 forms that carry any of these. A
  public address of your own site is the internet to it: list such networks in `SANDHERD_SANDBOX_DENY`.
- In mode `allow` a name stands for the addresses that the forwarder's resolver gave this sandbox for it, for at least
  an hour; other names are not looked up. DNS is served over UDP only, and only queries are forwarded: a connection to
  port 53 over TCP is checked like any other.
- TCP and DNS pass. Other UDP, such as QUIC, and ICMP do not: clients of HTTP/3 fall back to TCP. IPv6 works where the
  host has a route to it. A connection is accepted before its destination is known to respond, so that an unreachable
  host shows as a reset and not as a refused connection.
- A sandbox has at most 512 connections, a burst of 600 new ones and 100 per second after that, and 64 pending DNS
  queries; a connection without traffic for four hours, or half closed for 15 minutes, is closed.
- A killed forwarder is restarted; its connections are lost. It runs as long as its sandbox, not as long as the
  spawner, in the sandbox's control groups and, where it has a host uid of its own, under that.

The forwarder is our own (`sandherd_network`), as no package that pip installs contains pasta or slirp4netns, and
neither of them filters by destination. It needs no TUN device, no privileges beyond those over the sandbox's own user
namespace, and from the kernel `nf_tables` with `nft_tproxy`. Where these are missing no sandbox is started; `sandherd
runtimes` shows why, and `SANDHERD_SANDBOX_NETWORK=host` works without them.
"""
PROCESSES: Final = """## Isolation of the process runtime

Each sandbox is isolated by bubblewrap: user, process, mount, IPC, host name and control group namespaces of its own, no
capabilities, no new privileges, a file system that is read-only but for its own directories, which are mounted `nosuid`
and `nodev`, and a new session keyring. What it runs sees itself as uid 1000. On the host it is:

| the spawner runs as | sandboxes run as | separated from other sandboxes by |
| --- | --- | --- |
| root | a host uid and gid of their own | uid, namespaces, seccomp, Landlock |
| another user who has subordinate ids | a subordinate uid and gid of their own | uid, namespaces, seccomp, Landlock |
| another user | that user | namespaces, seccomp, Landlock |

`sandherd runtimes` shows which it is as `HOST UID` (`own`, `subordinate`, `spawner`; `root` only with weak isolation),
and `sandherd doctor` as `sandbox host uid`.

The host uids come from `SANDHERD_SANDBOX_UID_FIRST` and `SANDHERD_SANDBOX_UID_COUNT`. The spawner checks at its start
that the range exists on this host (`/proc/self/uid_map`) and contains no id of `/etc/passwd`, `/etc/group`,
`/etc/subuid` and `/etc/subgid`. Each uid in use is reserved by a file in `/run/sandherd/uids`, so that no two sandboxes
of this host share one, even of different spawners. A spawner that starts removes reservations of sandboxes whose
directory no longer exists, unless a process still runs under the uid. Spawners in containers that do not share `/run`
need ranges of their own.

The Python interpreter, packages and toolchains may be in a directory that only root can enter, such as `/root`, but
must themselves be readable by every user.

### Start by fork

A worker that loads its Python modules itself starts slowly. Therefore the spawner starts one process, the *fork
server*, that loads the modules once, and forks each worker from it. It is started for the first sandbox, which starts
as slowly as without it. `START` in `sandherd runtimes` shows whether workers are started by `fork` or by `exec`.

A sandbox starts in three steps:

1. Bubblewrap creates the namespaces of the sandbox and starts a small program in them, the *stub*.
2. The fork server forks a child. The child joins the control groups and the namespaces of the stub, and drops the same
   privileges that bubblewrap drops.
3. The child becomes the worker. If any step fails, the stub starts the worker by exec.

If the fork server ends, running sandboxes continue, and the next sandbox starts a new one. Commands of `sandherd exec`
that run at this moment end.

Network forwarders are forked likewise, from a fork server of their own, if sandboxes have control groups. It has only
the modules of the forwarder, no variable but `PATH` and `LANG`, and other memory addresses than workers, whose agents
may know those of their own. A forwarder that is killed, or that can't be forked, is started by exec.

What this means for the isolation of sandboxes:

- The fork server is a separate program. Its environment is `PATH`, `LANG` and, if it is set, the worker's `PYTHONPATH`.
  It has no memory, variable or file descriptor of the spawner, and therefore none of the spawner's secrets.
- The fork server itself reads no requests. Each child starts in the same state, without data of another sandbox.
- Memory addresses, the stack canary and Python's hash seed are the same in all workers of one fork server. An agent
  can't read the memory of its worker; but an address that it learns of its own worker is valid in other workers, too.
  Random numbers differ: each worker seeds the generators of Python, OpenSSL and `tempfile` again.
- A *holder* process, between the first process of the sandbox and the worker, reports the worker's exit status. It has
  no capabilities, and processes of the sandbox can neither read nor trace it. On kernels without Landlock scopes
  (before 6.12) they can trace the stub, and so report a false exit status of their own worker.
- If a child hangs before it becomes a worker, only its own sandbox is delayed. The child ends with the sandbox; without
  control groups, as soon as it continues.

### Subordinate uids

The spawner of an ordinary user gives each sandbox one of the user's subordinate uids, so that a user without root has
sandboxes with host uids of their own. It needs:

- a range of at least 1,024 ids for the user in `/etc/subuid` and in `/etc/subgid`, which no other user has; each
  sandbox uses one. The largest of several is used. `useradd` adds one of 65,536 for new users; for others, as root:
  `usermod --add-subuids 300000-365535 --add-subgids 300000-365535 USER`;
- `newuidmap` and `newgidmap` (Debian's package `uidmap`, elsewhere `shadow-utils`);
- an entry in `/etc/passwd`, and a home directory where it can make `.local/state/sandherd/uids`, in which all spawners
  of the user reserve uids. It must not be shared by several hosts;
- a file system for `SANDHERD_HOME` on which files can belong to those ids, which excludes most network file systems;
- one of `/media`, `/mnt`, `/srv` and `/opt` without anything that sandboxes need: it is hidden in them.

There is nothing to set. The spawner moves into a user namespace in which its user and these ids exist, and nothing
else: it stays the same user, with permissions over those ids alone. A restarted spawner joins the namespace of
the sandboxes that still run. Where something is missing, sandboxes run under the user's own uid, and `sandherd
runtimes` and `sandherd doctor` state the reason as a gap. While sandboxes run that were started that way, a spawner
that is restarted continues in that way; after `sandherd down` it checks again.

While a sandbox exists its files belong to its uid. `sandherd down` gives those that are left to the user, who can then
remove the home like any directory. Run it before you remove the ids or the programs, before you downgrade to a version
that does not know subordinate uids, and before you remove the home. Rootless containers of the same user draw from the
same range: one may have the uid of a sandbox. Limits of memory, cores and disk are those of an ordinary user.

The worker and its agents have the same uid. An agent can't trace the worker or open its files in `/proc`, as the worker
is not dumpable; it can't signal it, as each program that the worker starts is in a Landlock domain of its own (Linux
6.12). Commands of `sandherd exec` are in domains of their own, too: they see the agent's processes and can't signal
them.

Where a host can't isolate sandboxes the runtime starts none and the error names the cause. `SANDHERD_ISOLATION=weak`
starts them with what isolation there is; the spawner then logs a warning with each start. `sandherd runtimes` and
`sandherd doctor` list what is missing. They also show whether the disk of sandboxes is limited. The same holds for a
host on which sandboxes can't have a network of their own: none starts, unless `SANDHERD_SANDBOX_NETWORK=host` shares
the host's.

A profile with `user_namespaces = true` lets programs make user namespaces and mount in them, as Chromium's sandbox and
rootless Podman do. That opens the kernel's namespace, mount and file system code to the agent, where many local root
exploits were found. With a spawner that is root, such an exploit still starts from an unprivileged uid. Only the herd's
settings declare profiles, so a task can't allow it to itself.

The seccomp filter is the same for workers, agents, agent servers, warm sandboxes and commands run beside them. It knows
x86_64 and aarch64, ends a program that uses another calling convention, and fails system calls that are newer than
Linux 6.17 with ENOSYS. It denies:
"""
NOTES: Final = """## Docker

A container gets no capabilities, no new privileges, a user of its own, a read-only root file system, and limits of
memory, processes and open files. `/sandherd` is a volume with the sandbox's name, which is removed with it. Its files,
including the credential, are sent to its standard input as it starts: they are in no variable, argument, label or log.

Containers are not created from the image itself, but from one with the tag `sandherd-ready:…` that the spawner builds
from it once per engine: it adds the sandbox's empty folders, and the worker if the image lacks it. The image can still
be removed by its name; `docker image prune --all` removes what no container needs any more.

Mounts of a profile have the same owner and mode as on the host. A volume that the engine has just created belongs to
root, and a sandbox can only read it: change its owner to the sandboxes' user (1000, or `SANDHERD_DOCKER_USER`) before.

A container outlives its spawner and the whole stack: the next one finds it and continues with it. `sandherd down` stops
it gracefully and leaves it at the engine; the next `up` collects what it published, and then removes it.

When an engine is stopped, or crashes, its containers end. The attempt fails with `stopped` if the worker could still
report it, else with `worker_lost`, which another worker reports once the engine runs again; the next attempt does the
task. Sandboxes requested meanwhile are created once the engine is back. A container removed from outside is created
again from its volume, to publish undelivered events; without that it is `sandbox_lost`. `live-restore` is not tested.

## Daytona

Sandherd sets a sandbox's name and label, so that it finds one whose creation got no response. A snapshot that is not
active is refused by its name. A snapshot has its own memory and cores: the memory limit of a spec is not enforced for
its sandboxes, and a spec with cores is refused. With `SANDHERD_DAYTONA_SNAPSHOT` the runtime shows that, although a
spec that names an image gets its memory, in whole GiB. `SANDHERD_DAYTONA_AUTO_STOP` is 0 by default, as Daytona does
not count background processes as activity. Daytona does not report the end of a program: the spawner checks for it
every `SANDHERD_DAYTONA_LOOK_INTERVAL` seconds.

Daytona requires one token for all ports of a sandbox, including that of its toolbox: its holder may run commands
there. It can't be revoked before the next start of the sandbox, which changes it. It is returned only with an agent
server's key, to clients that may run commands in the project anyway.
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
        table(("provider", "error_type", "meaning"), ((fault, AS[fault], FAULTS[fault]) for fault in ProviderFault)),
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
