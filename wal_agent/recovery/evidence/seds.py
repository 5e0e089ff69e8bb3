"""sed -i: it writes a new file beside the old one and renames it over that, so another file there is proof."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry
from wal_agent.recovery.evidence.notes import Noted, State, each, notes, told, untouched
from wal_agent.recovery.evidence.paths import place
from wal_agent.recovery.evidence.words import program
from wal_agent.recovery.step import Around, Budget, Found, Reach, Step

# One address or two, and a substitution or deletion. No flag or command that writes elsewhere or executes (w, e, r).
_PLACE = r"(?:[0-9]+|\$|/(?:\\[^\n]|[^/\\\n])*/)"
_SCRIPT = re.compile(
    rf"(?:{_PLACE}(?:,{_PLACE})?)?(?:d|s(?P<by>[/|#,@:])(?:\\[^\n]|(?!(?P=by))[^\\\n])*(?P=by)"
    r"(?:\\[^\n]|(?!(?P=by))[^\\\n])*(?P=by)[gIi0-9]*);?"
)


class Seds:
    def reach(self, step: Step) -> Reach | None:
        paths = _operands(step)
        return None if paths is None else Reach(paths)

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        paths = _operands(step)
        return None if paths is None else notes(paths, budget, content=True)

    def judge(self, step: Step, facts: Sequence[Fact], around: Around, budget: Budget) -> Found | None:
        paths = _operands(step)
        if paths is None:
            return None

        def state(was: Noted, now: Entry) -> State:
            if was.entry.kind != "file":
                return "unknown"
            if untouched(was, now, around, budget):
                return "untouched"
            if not around.same_place or not around.alone or now.kind != "file":
                return "unknown"
            other = now.inode != was.entry.inode and now.mtime >= was.entry.mtime
            return "done" if other and now.device == was.entry.device else "unknown"

        done = "is another file than before, as `sed -i` leaves it" if len(paths) == 1 else "were written anew by sed"
        return told(each(paths, facts, state), around, done, "written anew")


def _operands(step: Step) -> tuple[str, ...] | None:
    """The files of `sed -i [-E|-r] (SCRIPT | -e SCRIPT...) FILE...`."""
    if program(step) != "sed":
        return None
    scripts: list[str] = []
    rest, files, inplace = list(step.words[1:]), [], False
    while rest:
        word = rest.pop(0)
        if word in ("-i", "-E", "-r"):  # anything behind -i is a suffix: two files would change
            inplace = inplace or word == "-i"
        elif word == "-e" and rest:
            scripts.append(rest.pop(0))
        elif word.startswith("-"):
            return None
        else:
            files.append(word)
    if not scripts and files:
        scripts.append(files.pop(0))
    if not inplace or not files or not all(_SCRIPT.fullmatch(s) for s in scripts):
        return None
    paths = [place(step, f) for f in files]
    if None in paths or len(set(paths)) != len(paths):
        return None
    return tuple(p for p in paths if p is not None)


SEDS = Seds()
