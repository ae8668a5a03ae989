"""The start of a program: which modules are not loaded, and when garbage is collected again."""

import subprocess
import sys

PROGRAM = """
import gc
from sandherd.lazy_imports import end_start, load_nats, start_lean

usual = gc.get_threshold()
start_lean()
print(gc.get_threshold()[0] > usual[0])
load_nats()
import nats, sys
print("aiohttp" in sys.modules)
end_start()
print(gc.get_threshold() == usual, gc.get_freeze_count() > 1000)
"""


def test_garbage_is_collected_rarely_only_during_the_start() -> None:
    """Imported objects are excluded from later collections; nats-py has not loaded its client of websockets."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True", "True"]


JETSTREAM = """
import sys
from sandherd.lazy_imports import load_nats

load_nats()
import nats, nats.js, nats.js.errors
loaded = {"nats.js.api", "nats.js.client", "nats.js.kv"}
print(loaded & set(sys.modules) == set())
from nats.js import JetStreamContext, api
import nats.js.client
print(JetStreamContext is nats.js.client.JetStreamContext, nats.js.JetStreamManager.__module__)
print(api.StreamConfig is nats.js.api.StreamConfig, hasattr(nats.js, "nonsense"))
print(type(nats.NATS().jetstream()).__name__)
"""


def test_client_of_jetstream_is_loaded_on_first_use() -> None:
    """Its names are those of nats-py; a program that uses none of them loads none of its modules."""
    done = subprocess.run([sys.executable, "-c", JETSTREAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "nats.js.manager", "True", "False", "JetStreamContext"]


HEADERS = """
import sys
from sandherd.lazy_imports import load_nats

load_nats()
import nats.js
short = nats.js.api.Header
print("nats.js.api" in sys.modules)
print([short.STATUS, short.DESCRIPTION, short.CONSUMER_STALLED], "nats.js.api" in sys.modules)
import nats.js.kv, nats.js.api
print(all(getattr(short, one.name) == one.value for one in nats.js.api.Header))
"""


def test_names_of_headers_are_those_of_nats_py() -> None:
    """Its client reads three with each reply, without the module; what was loaded before that finds all of them."""
    done = subprocess.run([sys.executable, "-c", HEADERS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "['Status', 'Description', 'Nats-Consumer-Stalled'] False", "True"]


TYPED = """
from sandherd.lazy_imports import start_lean

start_lean()
import typing, typing_extensions
from pydantic import BaseModel, TypeAdapter
from pydantic_core import core_schema
print(typing.is_typeddict(core_schema.StringSchema), type(core_schema.CoreConfig(strict=True)) is dict)
for module in typing, typing_extensions:
    print(typing_extensions.is_typeddict(module.TypedDict("Point", {"x": int})))
class Place(typing_extensions.TypedDict):
    x: int
print(TypeAdapter(Place).validate_python({"x": "1"})["x"])
class Named(BaseModel):
    name: str
print(Named.model_validate_json('{"name": "a"}').name, Named.model_json_schema()["required"][0])
"""


def test_typed_dictionaries_of_the_core_of_pydantic_are_not_evaluated() -> None:
    """Its 700 fields cost a fifteenth of a command's CPU time; those of other modules are validated as usual."""
    done = subprocess.run([sys.executable, "-c", TYPED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "True", "1", "a", "name"]
