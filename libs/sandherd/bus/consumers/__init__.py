"""Durable consumers: pulling, fair queues, outcomes and dead letters."""
