"""Recovery: what a job's log and this machine say, what follows from it, and what the agent is told."""
