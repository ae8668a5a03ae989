"""Pull requests from the branches of tasks. They are opened, polled and merged at their forges."""
