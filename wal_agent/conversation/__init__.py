"""What a job remembers of its conversations: checkpoints, transcripts, recall, rewrites, tasks, handoffs."""
