"""`python -m wal_agent`."""

from wal_agent.cli.main import main

main()
