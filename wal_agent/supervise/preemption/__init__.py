"""Preemption: the cloud's notice that this machine is about to go, and what becomes of the run then."""
