"""MCP servers for an agent's SDK: the herd's own tools, and servers that the task adds."""
