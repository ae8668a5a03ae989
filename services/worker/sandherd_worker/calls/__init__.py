"""Finds out from the inputs and results of tool calls which calls are checks, and which failed because of an outage."""
