"""`wal-agent`, and `python -m wal_agent`: where an interrupt counts from the first import on."""

import sys


def main() -> None:
    try:
        from wal_agent.cli.main import main as run

        run()
    except KeyboardInterrupt:  # Ctrl-C while the command is still being loaded
        sys.exit(130)


if __name__ == "__main__":
    main()
