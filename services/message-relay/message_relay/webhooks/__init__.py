"""Webhooks: delivers a project's events to URLs, signed, in order for each task and sandbox, at least once."""
