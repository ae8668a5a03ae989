"""The page of runtimes: where sandboxes can run, how each is chosen, and what it can do."""

from typing import Final

from pages import EMPTY, page, table

from spawner.runtimes.boxes.asking import AS
from spawner.runtimes.boxes.provider import Abilities, ProviderFault
from spawner.runtimes.daytona.cloud import Cloud
from spawner.runtimes.docker.engine import Engine
from spawner.runtimes.kubernetes.provider import Pods
from spawner.runtimes.remote.provider import Remote

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
| process | none | [operating.md](operating.md) |
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
| process | `http://127.0.0.1:PORT` | any | the spawner's host | none |
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
        WORKER,
        FAILING,
        table(("provider", "error_type", "means"), ((fault, AS[fault], FAULTS[fault]) for fault in ProviderFault)),
        NOTES,
    )


def abilities_table() -> str:
    """What each can do, by what its code says of it."""
    head = ("runtime", "a sandbox is", *CAN.values())
    return table(head, (_row(name, *what) for name, what in {"process": PROCESS, **BOXES}.items()))


def _row(name: str, what: str, able: Abilities) -> tuple[str, ...]:
    return (name, what, *("yes" if getattr(able, field) else EMPTY for field in CAN))
