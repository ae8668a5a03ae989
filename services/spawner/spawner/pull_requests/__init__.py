"""Pull requests from the branches of tasks: opened, followed and merged at their forges."""
