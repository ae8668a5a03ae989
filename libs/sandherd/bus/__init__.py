"""Access to the broker: connections, publishing, consuming, leases, identity."""

from sandherd.lazy_imports import load_nats

load_nats()
