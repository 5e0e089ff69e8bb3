"""Lease and log: who may write, what was written, and how it is read again (I1-I3)."""
