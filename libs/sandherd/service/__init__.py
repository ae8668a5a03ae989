"""The common parts of every service: requests, health, diagnostics, metrics over HTTP and limits."""

import sandherd.bus  # noqa: F401  # loads nats without its unused parts: import it before FastStream
from sandherd.service.library_imports import load_libraries

load_libraries()
