"""`wal-agent drill`: kill the user's own agent in a scratch world, recover it, and grade what the world counted."""
