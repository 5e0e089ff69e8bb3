"""What the agent is told when a tool is denied (UX.md): why, that nothing was changed, and not to try other ways."""

from __future__ import annotations

_STOP = "Nothing was changed. Do not try other ways; stop here and say so."


def deny_unsaved(seconds: float) -> str:
    """The intent could not be saved for `seconds` (0: at once)."""
    since = f" for {seconds:.0f} s" if seconds >= 1 else ""
    return f"wal-agent did not run this: its intent could not be saved (bucket unreachable{since}). {_STOP}"


DENY_FENCED = f"wal-agent did not run this: another host has taken this job over, and this run is being ended. {_STOP}"
DENY_LATE = f"wal-agent did not run this: its lease could not be renewed in time (bucket unreachable). {_STOP}"
DENY_DRAINING = (
    "wal-agent did not run this: this machine is being given up, and the job goes on elsewhere from here. "
    "Nothing was changed. Start nothing new; say in one line where you are and stop."
)
DENY_PAUSING = (
    "wal-agent did not run this: the job is being paused; this run ends now, and goes on by itself after the pause. "
    "Nothing was changed. Start nothing new; say in one line where you are and stop."
)
DENY_HUNG = f"wal-agent did not run this: it came after too long a silence, and this run is being ended. {_STOP}"
DENY_ENDED = f"wal-agent did not run this: this run has ended. {_STOP}"
