"""Commands and files in sandboxes, for users: checked here, executed by the sandbox's worker. Any replica replies."""
