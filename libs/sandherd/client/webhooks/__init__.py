"""Outgoing webhooks: delivers the events of a durable subscription to a URL, signed, in order, at least once."""
