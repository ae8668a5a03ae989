"""Facts about tool calls, found in their inputs and results: which are checks, and which failed by an outage."""
