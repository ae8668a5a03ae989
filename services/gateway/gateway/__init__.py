"""The HTTP API: requests and commands for other services over the broker, and events as Server-Sent Events."""

import sandherd.service  # noqa: F401  # loads libraries without their unused parts: import it before them
