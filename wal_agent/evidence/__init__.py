"""Find out what became of a call that a crash cut off: facts before it, and what its effects look like now."""
