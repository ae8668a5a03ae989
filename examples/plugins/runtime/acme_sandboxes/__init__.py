"""A runtime of Sandherd: sandboxes of this host, in a folder of their own."""
