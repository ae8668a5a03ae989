"""The network of sandboxes of the process runtime: a namespace with one way out, through a forwarder with a policy."""
