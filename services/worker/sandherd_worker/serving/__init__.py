"""A server that runs beside the worker for as long as its sandbox lives, for programs outside of the sandbox."""
