"""The pages that are made from the code: what stands in each."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import BaseModel

from sandherd import settings
from sandherd.bus import permissions, setup_permissions
from sandherd.contracts import schemas, states, streams
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.heard import HEARD_FROM
from sandherd.contracts.subjects import PREFIX, TABLE, Principal, Subject

MADE: Final = "<!-- Made by `make docs` from {source}; change that instead. -->\n"
EMPTY: Final = ""
RETRY: Final = "`failed → pending` is a retry, with a new attempt; so is `cancelled → pending`, on request only."

Row = Iterable[object]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    titles = [str(title) for title in head]
    lines = [titles, ["---"] * len(titles), *([cell(item) for item in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(item: object) -> str:
    """What stands in one cell: on one line, and no bar in it."""
    return " ".join(str(item).split()).replace("|", "\\|")


def code(item: object) -> str:
    """As code, or an empty cell."""
    return f"`{item}`" if item not in (None, EMPTY) else EMPTY


def first_line(model: type) -> str:
    """The first sentence of a docstring."""
    return (model.__doc__ or EMPTY).strip().partition("\n")[0]


def page(title: str, source: str, *parts: str) -> str:
    """A whole Markdown page."""
    return "\n".join([f"# {title}\n", MADE.format(source=f"`{source}`"), *parts])


# --- subjects --------------------------------------------------------------------------------------------------------


def subject_table() -> str:
    """Every subject: what is said on it, by whom and to whom, and what keeps it."""
    head = ("mood", "subject", "what it says", "said by", "heard by", "stream")
    return table(head, (subject_row(row) for row in TABLE))


def subject_row(row: Subject) -> Row:
    """A row of the table."""
    shown = row.template.removeprefix(f"{PREFIX}.").replace("{", "<").replace("}", ">")
    return row.mood, code(shown), row.says, names(row.producers), names(row.consumers), row.stream or EMPTY


def names(principals: Iterable[Principal]) -> str:
    """Principals, with the four services as one word where all are meant."""
    found = set(principals)
    parts = ["every service"] if found.issuperset(permissions.SERVICES) else []
    rest = found - set(permissions.SERVICES) if parts else found
    return ", ".join([*parts, *sorted(rest)])


def subjects() -> str:
    """The page of subjects."""
    kept = table(
        ("stream", "takes", "keeps", "for", "at the most", "when full"),
        (stream_row(stream) for stream in streams.STREAMS),
    )
    consumers = table(
        ("consumer", "stream", "of", "filters"),
        ((code(c.name), c.stream, c.service, ", ".join(map(code, c.filters))) for c in streams.CONSUMERS),
    )
    buckets = table(
        ("bucket", "holds", "written by", "read by"),
        ((code(b.name), b.says, names(b.owners), names(b.readers)) for b in streams.BUCKETS),
    )
    return page(
        "Subjects, streams and buckets",
        "libs/sandherd/contracts/subjects.py and streams.py",
        f"Every subject begins with `{PREFIX}.`; `<…>` stands for one token, `fleet` for all projects.\n",
        subject_table(),
        "## Streams\n",
        kept,
        "## Durable consumers\n",
        consumers,
        "## Buckets\n",
        buckets,
    )


def stream_row(stream: streams.Stream) -> Row:
    """A row of the streams' table."""
    taken = code(", ".join(stream.subjects))
    full = "refuses the newest" if stream.refuse_when_full else "lets the oldest go"
    return stream.name, taken, stream.says, span(stream.max_age), f"{stream.max_bytes // 2**20} MiB", full


def span(seconds: float) -> str:
    """A length of time in its largest whole unit."""
    days, hours = seconds / 86_400, seconds / 3600
    return f"{days:g} days" if days >= 1 else f"{hours:g} hours"


# --- events ----------------------------------------------------------------------------------------------------------


def events() -> str:
    """The catalogue of events, a table for each domain."""
    rows = {row.name.removeprefix("event."): row for row in TABLE if row.name.startswith("event.")}
    parts = [part for domain, row in rows.items() for part in event_domain(domain, row)]
    return page(
        "Events",
        "libs/sandherd/contracts/events",
        "Every event is a CloudEvents 1.0 document; its `data` has the fields below; those with `?` may be left out.\n"
        "*work*: it shows that the agent is getting on. *ends*: it ends the attempt.\n"
        "*opens* and *closes* name the field with the key of a call that is in flight in between.\n"
        "*heard from*: what any agent may say of itself on its pipe for events, and what only a driver may,\n"
        "the program that runs an agent for its worker. For all else a worker takes nobody's word.\n",
        *parts,
    )


def event_domain(domain: str, row: Subject) -> Iterator[str]:
    """A heading and a table."""
    yield f"## {domain}\n"
    yield f"{row.says} Said by: {names(row.producers)}.\n"
    found = {name: model for name, model in EVENTS.items() if name.startswith(f"{domain}.")}
    yield table(
        ("type", "what it says", "heard from", "work", "ends", "opens", "closes", "fields"),
        (event_row(name, model) for name, model in found.items()),
    )


def event_row(name: str, model: type[EventData]) -> Row:
    """A row of the catalogue."""
    fields = ", ".join(
        code(f"{field}{EMPTY if info.is_required() else '?'}") for field, info in model.model_fields.items()
    )
    link = f"[`{name}`](schemas/v1/{name}.json)"
    flags = ("yes" if model.counts_as_work else EMPTY, "yes" if model.terminal else EMPTY)
    return link, first_line(model), HEARD_FROM.get(name, EMPTY), *flags, code(model.opens), code(model.closes), fields


# --- states ----------------------------------------------------------------------------------------------------------


def states_page() -> str:
    """A diagram and a table of each kind of state."""
    kinds: list[tuple[str, type[states.State], states.State, str]] = [
        ("Tasks", states.TaskState, states.TaskState.PENDING, RETRY),
        ("Sandboxes", states.SandboxState, states.SandboxState.REQUESTED, "A sandbox that failed is not used again."),
        ("Messages", states.MessageState, states.MessageState.QUEUED, "A message to an ended sandbox is rejected."),
        ("Approvals", states.ApprovalState, states.ApprovalState.PENDING, "The first answer counts, or the time-out."),
    ]
    parts = [part for kind in kinds for part in state_part(*kind)]
    says = "A change that is not drawn here is refused, counted and logged, and never written.\n"
    return page("States", "libs/sandherd/contracts/states.py", says, *parts)


def state_part(title: str, kind: type[states.State], first: states.State, remark: str) -> Iterator[str]:
    """A heading, a remark and a diagram."""
    order = {state: place for place, state in enumerate(kind)}
    allowed = sorted(states.ALLOWED[kind], key=lambda pair: (order[pair[0]], order[pair[1]]))
    leaving = {before for before, _ in allowed}
    ends = [state for state in kind if state not in leaving]
    arrows = [
        f"[*] --> {first}",
        *(f"{before} --> {after}" for before, after in allowed),
        *(f"{e} --> [*]" for e in ends),
    ]
    yield f"## {title}\n"
    yield f"{remark}\n"
    yield "```mermaid\nstateDiagram-v2\n" + "".join(f"    {arrow}\n" for arrow in arrows) + "```\n"


# --- configuration, permissions --------------------------------------------------------------------------------------


def configuration() -> str:
    """Every setting."""
    fields = settings.Settings.model_fields
    said = schemas.field_docs(settings.Settings)
    rows = (
        (code(name), code(env.name), default(fields[name]), said.get(name, EMPTY))
        for name, env in settings.environment_names().items()
    )
    return page(
        "Configuration",
        "libs/sandherd/settings",
        "A parameter goes before the environment, the environment before the YAML file, and that before the default.\n"
        "`sandherd config show` says what holds and where it came from (`parameter`, `environment`, `yaml`,\n"
        "`context`, `default`); its first line is the file. Times are in seconds.\n"
        "`context` is what the stack of this home says of itself in `context.json`: where its broker is, credentials,\n"
        "and the file that it was started with. Commands read that file unless they are given another, and so does an\n"
        "`up` after a crash; `down` ends that. What the stack says of its broker goes before what its file says.\n"
        "A setting with parts, as `profiles`, is written in a variable as YAML or JSON, as in the file.\n",
        table(("setting", "variable", "default", "what it is"), rows),
    )


def default(field: Any) -> str:
    """A setting's default; what is found out at run time is said in words."""
    if field.default_factory is not None:
        return "by the XDG base directories"
    if isinstance(field.default, BaseModel):
        return code(", ".join(f"{name}: {value}" for name, value in field.default))
    return "none" if field.default == {} else code(field.default)


def rights() -> str:
    """What the broker lets each principal do."""
    granted = {
        **{service.value: permissions.for_service(service) for service in permissions.SERVICES},
        "worker": permissions.worker_template(),
        "joiner": permissions.joiner_template(),
        "client": permissions.for_person(Principal.CLIENT, "project", "<key>"),
        "subscriber": permissions.for_person(Principal.SUBSCRIBER, "project", "<key>"),
        "operator": permissions.for_person(Principal.OPERATOR, None, "<key>"),
        "provisioner": setup_permissions.for_provisioner(),
        "provisioner with --allow-changes": setup_permissions.for_stream_changes(),
        "backup": setup_permissions.KEPT_AND_BACK,
    }
    return page(
        "Permissions",
        "libs/sandherd/bus/permissions.py",
        "The broker is the wall: this is all that each credential can do.\n"
        "`{{name()}}` and `{{tag(project)}}` are filled in by the broker from the credential itself.\n"
        "What it means for a deployment is in [security.md](security.md).\n",
        "## Who says what to whom\n",
        "*says* and *hears* are by subject, *reads* is out of the stream that keeps it. A client and a subscriber do\n"
        "so in their own project only, a worker and a joiner for their own sandbox only.\n",
        table(("subject", *(code(principal) for principal in Principal)), map(matrix_row, TABLE)),
        *(part for name, found in granted.items() for part in right(name, found)),
    )


def matrix_row(row: Subject) -> Row:
    """A row of the matrix of permissions."""
    shown = row.template.removeprefix(f"{PREFIX}.").replace("{", "<").replace("}", ">")
    directly = row.mood in permissions.HEARD_DIRECTLY
    return code(shown), *(", ".join(_rights(row, principal, directly=directly)) for principal in Principal)


def _rights(row: Subject, principal: Principal, *, directly: bool) -> Iterator[str]:
    if principal in row.producers:
        yield "says"
    if principal in row.consumers:
        yield "hears" if directly else "reads"


def right(name: str, found: permissions.Permissions) -> Iterator[str]:
    """A heading, and the subjects in lists."""
    yield f"## {name}\n"
    lists = {"publishes": found.publish, "but never": found.deny_publish, "subscribes": found.subscribe}
    for title, patterns in lists.items():
        if patterns:
            yield f"{title}:\n\n" + "".join(f"- `{pattern}`\n" for pattern in patterns)
    if found.answers:
        yield f"answers what it gets: {found.answers.count} message within {found.answers.seconds:g} s\n"
