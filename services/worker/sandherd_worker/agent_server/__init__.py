"""A server that runs beside the worker for the life of its sandbox, for programs outside the sandbox."""
