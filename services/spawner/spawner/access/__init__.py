"""Commands and files in sandboxes, for people: looked up here, done by the sandbox's worker. Any replica answers."""
