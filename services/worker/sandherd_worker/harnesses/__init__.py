"""The adapters to kinds of agents. Each is a `Harness`, and is given a `Voice` to speak with."""
