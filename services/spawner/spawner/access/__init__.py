"""Users' requests about a sandbox, such as commands and files. Any replica checks them; the worker executes them."""
