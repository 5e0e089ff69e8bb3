"""What is saved: the agent's session files, as deltas against the last captured version."""
