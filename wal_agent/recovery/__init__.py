"""Recovery: decide from a job's log and this machine what to do, restore, and write the notice for the agent."""
