"""The driver for any agent that speaks the Agent Client Protocol over its standard input and output."""
