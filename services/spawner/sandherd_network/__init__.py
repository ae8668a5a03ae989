"""The network of the process runtime's sandboxes: a namespace whose only exit is a forwarder that enforces a policy."""
