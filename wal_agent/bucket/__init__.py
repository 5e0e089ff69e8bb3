"""Buckets: objects with conditional puts."""
