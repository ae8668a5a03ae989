"""What the herd offers an agent by way of its SDK: tools of our own, and servers that the task adds."""
