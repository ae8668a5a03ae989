"""The page of runtimes: where sandboxes can run, how each is chosen, and what it can do."""

import errno
from typing import Final

from pages import EMPTY, page, table

from spawner.runtimes.boxes.asking import AS
from spawner.runtimes.boxes.provider import Abilities, ProviderFault
from spawner.runtimes.daytona.cloud import Cloud
from spawner.runtimes.docker.engine import Engine
from spawner.runtimes.kubernetes.provider import Pods
from spawner.runtimes.remote.provider import Remote
from spawner.runtimes.syscall_filter import RULES

BOXES: Final[dict[str, tuple[str, Abilities]]] = {
    Engine.name: ("a container of a Docker Engine", Engine.abilities),
    Cloud.name: ("a sandbox of Daytona's, of an image", Cloud.abilities),
    f"{Cloud.name}, with a snapshot": ("a sandbox of Daytona's, of that snapshot", Cloud.of_snapshots),
    Remote.name: ("a runtime of OpenHands' Runtime API", Remote.abilities),
    Pods.name: ("a pod of a Kubernetes cluster, or a `Sandbox` of agents.x-k8s.io", Pods.abilities),
}
PROCESS: Final = ("processes of the spawner's own host, below bubblewrap", Abilities(pause=True, ports=True))
CAN: Final[dict[str, str]] = {
    "pause": "pauses",
    "memory_limit": "holds memory",
    "process_limit": "holds processes",
    "cpu_limit": "holds cores",
    "mounts": "mounts",
    "ports": "reaches ports",
}
"""What is shown of what they can do."""
FAULTS: Final[dict[ProviderFault, str]] = {
    ProviderFault.NOT_FOUND: "the sandbox is gone, whoever removed it",
    ProviderFault.QUOTA: "no room under this account, or on this engine",
    ProviderFault.RATE_LIMITED: "asked too often; it is waited for as long as the provider says",
    ProviderFault.REFUSED: "a wrong key, a missing right, an image that is not there, something that can't be done",
    ProviderFault.TRANSIENT: "it can't at this moment, or nobody answers: asked again",
    ProviderFault.TIMED_OUT: "it took too long, and may still be done: looked for before it is asked again",
}
CHOOSING: Final = """## Choosing one

One setting: `SANDHERD_RUNTIME` names where sandboxes run; further ones that specs and profiles may name are in
`SANDHERD_RUNTIMES`. `sandherd runtimes` shows those that a herd has, with what each can do there.

```sh
.venv/bin/sandherd config show -o json | grep '"runtime"'
```

All of them are asked the same by the spawner, and pass the same tests (`tests/integration/runtimes`): Docker's on a
real engine, Daytona's, the Runtime API's and Kubernetes' on doubles that speak to the vendor's own client and are
checked against the vendor's own models. What they need:

| runtime | setting | more |
|---|---|---|
| process | none | below, and [operating.md](operating.md) |
| docker | `DOCKER_HOST`, `SANDBOX_IMAGE`, `SANDHERD_DOCKER_NETWORK` | below |
| daytona | `DAYTONA_API_KEY`, and `SANDHERD_DAYTONA_SNAPSHOT` or `SANDBOX_IMAGE` | below |
| remote | `SANDBOX_REMOTE_RUNTIME_API_URL`, `SANDBOX_API_KEY`, `SANDBOX_IMAGE` | [remote.md](remote.md) |
| kubernetes | `SANDBOX_IMAGE`, `SANDHERD_KUBERNETES_NAMESPACE` | [kubernetes.md](kubernetes.md) |

Daytona's and Kubernetes' clients are installed with `sandherd-spawner[daytona]` and `sandherd-spawner[kubernetes]`.
A sandbox elsewhere finds the broker by `SANDHERD_SANDBOX_NATS_URL`.
"""
ABLE: Final = """## What each can do

Where there is no mark the command is refused, with a text that says so; memory and processes are not held then.
"""
PORTS: Final = """Which ports are reached, by whom, and what has to be shown on the way there:

| runtime | where | ports | who | header |
|---|---|---|---|---|
| process | `http://127.0.0.1:PORT`, another port than the one inside | any, 16 at once | the spawner's host | none |
| docker | the container's address in the engine's network, if it has one | any | that network | none |
| daytona | a preview URL of Daytona's own | any | everybody | `x-daytona-preview-token`, a secret |
| remote | what the Runtime API says in `work_hosts` | those in it | everybody | none |
| kubernetes | the pod's address | `SANDHERD_KUBERNETES_PORTS` | whom `SANDHERD_KUBERNETES_INGRESS` lets in | none |

A worker that is told which ports these are starts its [agent server](operating.md#an-agent-server-in-it) at one of
them. A port that there is no way to is refused, with what would open it or with those that there are.
"""
WORKER: Final = """## How the worker gets there

An image made by [`sandherd image build`](operating.md#images-of-sandboxes) has it. To any other image it is brought: as
about 25 MB, for a Python there that has the spawner's own minor version. Its supervisor is the first process: it reaps,
hands signals on, and starts the worker once more, to say what is left unsaid, where one was lost.
"""
FAILING: Final = """## When it goes wrong

Whatever a provider says is one of these. In the events of a task it stands as `error_type`
([errors.md](errors.md)); the text is the provider's own, without any credential.
"""
NETWORK: Final = """## Network of the process runtime

Each sandbox has a network namespace of its own, without any interface that leads out. A forwarder process on the host
accepts its TCP connections inside the namespace, checks the destination address, and makes the connection from the
host. `SANDHERD_SANDBOX_NETWORK` selects what is allowed, and a profile can override it (`network: {mode, allow,
endpoints}`); a task can only choose among profiles.

| mode | what a sandbox reaches | what that exposes |
|---|---|---|
| `internet` (default) | public addresses | the internet; names that only the host's resolvers know |
| `allow` | the hosts in `SANDHERD_SANDBOX_ALLOW` | whatever is served at their addresses and ports |
| `none` | nothing | nothing |
| `host` | all that the host reaches | its loopback services, private networks, metadata, sandboxes |

With `host` there is no namespace, and a warning is logged for each sandbox. In every mode a sandbox reaches the
broker, the collector in `SANDHERD_SANDBOX_OTLP_ENDPOINT`, and the endpoints in `SANDHERD_SANDBOX_ENDPOINTS`
(`127.0.0.1:11434,db.internal:5432`): exactly these hosts and ports. An agent finds a declared port of the host's
loopback at the same address inside. Declare what a task's variables point to at a private address or at loopback, as
`ANTHROPIC_BASE_URL`, `LLM_BASE_URL` or `HTTPS_PROXY`: nothing is declared by a variable, as a proxy or a gateway may
lead further than one means. A destination without a declaration is refused by a connection reset, and named once in
`network.log` in the folder of the sandbox's run.

- The decision is made on the address of each connection, never on a name: a public name that resolves to a private
  address is refused. Private are loopback, RFC 1918, shared (100.64.0.0/10), link-local, unique local, multicast and
  reserved addresses, cloud metadata addresses, the host's own addresses, and IPv6 forms that carry any of these. A
  public address of your own site is the internet to it: list such networks in `SANDHERD_SANDBOX_DENY`.
- In mode `allow` a name stands for the addresses that the forwarder's resolver gave this sandbox for it, for at least
  an hour; other names are not looked up. DNS is answered over UDP only, and only queries are forwarded: to port 53 over
  TCP a connection is judged like any other.
- TCP and DNS pass. Other UDP, so QUIC, and ICMP do not: clients of HTTP/3 fall back to TCP. IPv6 is there where the
  host has a route to it. A connection is accepted before its destination is known to answer, so that an unreachable
  host shows as a reset and not as a refused connection.
- A sandbox has at most 512 connections, 600 new ones at once and 100 per second after that, 64 open questions for
  names; a connection without traffic for four hours, or half closed for 15 minutes, is closed.
- A killed forwarder is started again; its connections are lost. It lives as long as its sandbox, not as long as the
  spawner, in the sandbox's control groups and, where it has a host uid of its own, under that.

The forwarder is ours (`sandherd_network`), as no package that pip installs carries pasta or slirp4netns, and neither
of them decides by destination. It needs no TUN device, no privileges beyond those over the sandbox's own user
namespace, and from the kernel `nf_tables` with `nft_tproxy`. Where these are missing no sandbox is started; `sandherd
runtimes` says why, and `SANDHERD_SANDBOX_NETWORK=host` does without.
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
that the range exists here (`/proc/self/uid_map`) and has nothing of `/etc/passwd`, `/etc/group`, `/etc/subuid` and
`/etc/subgid`. Reservations are files in `/run/sandherd/uids`, one for each uid, so that no two sandboxes of this host
share one, whichever spawner they belong to. A spawner that starts removes reservations of sandboxes whose directory is
gone, unless a process still runs under the uid. Spawners in containers that do not share `/run` need ranges of their
own.
Interpreter, packages and toolchains may lie below a directory that only root can enter, as `/root`, but must themselves
be readable by everybody.

### Subordinate uids

The spawner of an ordinary user gives each sandbox one of the user's subordinate uids, so that a user without root has
sandboxes with host uids of their own. It needs:

- a range of at least 1,024 ids for the user in `/etc/subuid` and in `/etc/subgid`, which is nobody else's; each sandbox
  uses one. The largest of several is used. `useradd` makes one of 65,536 for new users; for others as root:
  `usermod --add-subuids 300000-365535 --add-subgids 300000-365535 USER`;
- `newuidmap` and `newgidmap` (Debian's package `uidmap`, elsewhere `shadow-utils`);
- an entry in `/etc/passwd`, and a home directory in which it can make `.local/state/sandherd/uids`, where all spawners
  of the user reserve uids. It must not be shared by several hosts;
- a file system for `SANDHERD_HOME` on which files can belong to those ids, which excludes most network file systems;
- one of `/media`, `/mnt`, `/srv` and `/opt` in which nothing lies that sandboxes are to see: it is covered in them.

There is nothing to be set. The spawner moves into a user namespace in which its user and these ids exist, and nothing
else: it stays the same user, with rights over those ids alone. A spawner that is started again joins the namespace of
the sandboxes that still run. Where something is missing, sandboxes run under the user's own uid, and `sandherd
runtimes` and `sandherd doctor` state the reason as a gap. While sandboxes run that were started that way, a spawner
that is started again goes on with them so; after `sandherd down` it looks anew.

While a sandbox exists its files belong to its uid. `sandherd down` gives those that are left to the user, who can then
remove the home as any directory. Run it before you take the ids or the programs away, before you go back to a version
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
x86_64 and aarch64, ends a program that uses another calling convention, and answers system calls that are newer than
Linux 6.17 with ENOSYS. It denies:
"""
NOTES: Final = """## Docker

A container gets no capabilities, no new privileges, a user of its own, a root that can't be written to, and limits of
memory, processes and open files. `/sandherd` is a volume with the sandbox's name, which is removed with it. Its files,
the credential among them, come over its standard input as it starts: they are in no variable, argument, label or log.

Containers are not made of the image itself, but of one with the tag `sandherd-ready:…` that the spawner makes of it
once at each engine: it adds the sandbox's empty folders, and the worker if the image lacks it. The image can be removed
by its name all the same; what no container needs any more goes with `docker image prune --all`.

What a profile mounts is as it is on the host. A volume that the engine has just made belongs to root, and a sandbox can
only read it: give it to the sandboxes' user (1000, or what `SANDHERD_DOCKER_USER` says) before.

A container outlives its spawner and the whole stack: the next one finds it and goes on with it. `sandherd down` ends
it in order and leaves it at the engine, stopped; the next `up` takes in what it said, and then removes it.

An engine that is stopped, or crashes, takes its containers along. The attempt fails as `stopped` where the worker could
still say so, else as `worker_lost`: it is said by another worker once the engine runs again, and the next attempt does
the task. What is wanted while the engine is away is made once it is back. A container that a stranger removes is made
anew of its volume, to say what is left; with its volume it is `sandbox_lost`. `live-restore` was not tested.

## Daytona

A sandbox's name and label are ours, so that one whose creation was never answered is found again. A snapshot that is
not active is refused by its name. A snapshot's memory and cores are its own: a sandbox of one is not held to the memory
that its spec asks for, and asking for cores is refused. With `SANDHERD_DAYTONA_SNAPSHOT` the runtime says so, though a
spec that names an image gets its memory, in whole GiB. `SANDHERD_DAYTONA_AUTO_STOP` is 0 by default, as Daytona does
not count what runs in the background as activity. That a program has ended it tells nobody: it is looked for every
`SANDHERD_DAYTONA_LOOK_INTERVAL` seconds.

What Daytona wants to be shown at a port is one token for all ports of a sandbox, its own toolbox's among them: whoever
has it may run commands there. It can't be taken back before the sandbox is started the next time, and is another one
then. It is given only with an agent server's key, to those who may run commands in the project anyway.
"""


def runtimes() -> str:
    """The whole page."""
    intro = "A runtime is where sandboxes are made: processes, containers, pods, or somebody's service.\n"
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
        table(("provider", "error_type", "means"), ((fault, AS[fault], FAULTS[fault]) for fault in ProviderFault)),
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
    """What each can do, by what its code says of it."""
    head = ("runtime", "a sandbox is", *CAN.values())
    return table(head, (_row(name, *what) for name, what in {"process": PROCESS, **BOXES}.items()))


def _row(name: str, what: str, able: Abilities) -> tuple[str, ...]:
    return (name, what, *("yes" if getattr(able, field) else EMPTY for field in CAN))
