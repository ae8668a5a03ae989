"""The HTTP API: requests and commands for other services over the broker, and events as Server-Sent Events."""
