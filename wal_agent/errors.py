"""One tree of errors; each class knows its exit code and may carry the next step for a person.

The codes follow sysexits and are promises (docs/OPERATIONS.md). The message says what happened and why in one
sentence; `hint` says what to do next.
"""

from __future__ import annotations

NOT_DONE = 74
"""No error of ours: the agent ended with 0, but inside its turn. Engines count it, unlike 75."""


class WalAgentError(Exception):
    """Base of everything that wal-agent raises on purpose. `exit_code` is what the process ends with."""

    exit_code = 70

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} {self.hint}".rstrip()


class UsageError(WalAgentError):
    exit_code = 64


class BucketError(WalAgentError):
    """A bucket did not do what was asked. `why`: the cause in words of wal-agent, "" if it is not known. An agent may
    read it; it must not read a store's text."""

    def __init__(self, what: str, hint: str = "", why: str = "") -> None:
        super().__init__(what, hint)
        self.why = why


class NotFound(BucketError):
    """No object stands under this key."""


class Conflict(BucketError):
    """The condition of a put did not hold: another object, or another version, stands there now."""


class Unavailable(BucketError):
    """Not decided: the request may have had its effect, may have it later, or never. Try again, or read back."""

    exit_code = 69


class Unmounted(Unavailable):
    """The disk of a folder bucket is not there. A run goes on asking; a command that waited would wait in vain."""


class Denied(BucketError):
    """Credentials or permission are missing; trying again does not help."""

    exit_code = 77


class Misconfigured(Denied):
    """The bucket cannot be used as it is named or set up here; a person must change that."""

    exit_code = 78


class Damaged(WalAgentError):
    """Stored bytes are not what was written: checksum, chain, format or order do not hold."""

    exit_code = 73


class Newer(WalAgentError):
    """Stored bytes are whole, but a newer wal-agent wrote them: nothing of them is replaced, repaired or deleted here.

    No Damaged: what is done about damage must not be done about this."""

    exit_code = 78

    @classmethod
    def of(cls, name: str, what: str) -> Newer:
        """`name`: the object, as a sentence begins with it; `what`: which format, or what is unknown in it."""
        return cls(f"{name} was written by a newer wal-agent ({what}).", "Upgrade wal-agent on this machine.")


class NoJob(WalAgentError):
    """This folder has no job in the bucket."""

    exit_code = 1


class LeaseHeld(WalAgentError):
    """Another live owner holds the job."""

    exit_code = 75


class FolderInUse(WalAgentError):
    """Another run works in the folder, and a restore would replace its files. Nothing in the folder was changed."""

    exit_code = 75


class Exhausted(WalAgentError):
    """A limit of this machine is used up (limits.py); the same command works once it is not."""

    exit_code = 75


class Fenced(WalAgentError):
    """A higher epoch has taken the job over; this run may write and allow nothing any more."""

    exit_code = 76


class ConfigError(WalAgentError):
    """Configuration, agent or hooks cannot give what the invariants need."""

    exit_code = 78


class Unreadable(ConfigError, ValueError):
    """A hook's payload is not what its event carries: its line refuses, and the run says why."""


class NotThisJob(ConfigError):
    """The job belongs to another agent, folder or repository. It was not opened, and nothing was changed."""


class PersonNeeded(WalAgentError):
    exit_code = 79


class NotYourJob(PersonNeeded):
    """Another person ran the job last, elsewhere. It was not opened, and nothing was changed."""


class CrashLoop(WalAgentError):
    exit_code = 80
