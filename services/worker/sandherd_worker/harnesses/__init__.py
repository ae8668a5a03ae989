"""The adapters to kinds of agents. Each is a `Harness` that publishes through an `EventSink`."""
