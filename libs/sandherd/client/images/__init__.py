"""Images of sandboxes: the worker put on top of any that has, or is given, a Python for it."""
