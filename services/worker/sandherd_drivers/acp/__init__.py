"""The driver for any agent that supports the Agent Client Protocol over its standard input and output."""
