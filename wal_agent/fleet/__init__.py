"""Many jobs in one bucket: who runs what, what needs a host, and giving it one. Only leases are read; nothing here is
an authority of its own: whoever starts a job takes its lease and opens its log as always."""
