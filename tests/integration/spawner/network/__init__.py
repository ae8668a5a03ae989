"""The network of sandboxes of the process runtime, on a host and an internet that a test makes for itself."""
