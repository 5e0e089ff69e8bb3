"""wal-agent: lets a coding-agent CLI lose its machine at any instruction and still be right."""

__version__ = "0.1.0"
