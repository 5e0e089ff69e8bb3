"""Decide whether a call would repeat another one: on what is read of both (reading.py), not on their text. Pure.

Where something cannot be read, the words of the earlier call in the text of the new one count: a call too many that is
refused costs a look, one too few an effect that happens twice.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from wal_agent.calls.reading import ANYWHERE, Command, Runs
from wal_agent.calls.shell.syntax import Word, split_names

MAX_TEXT = 64 << 10  # characters that are searched for words
# Code that may start a program.
_STARTS = re.compile(r"system|[Pp]open|process|exec|spawn|run|call|check_|(?<![\w.])sh\b|`|\$\(")
# Programs that act on something else than the folder that they run in.
_ELSEWHERE = split_names(
    "curl wget http https kubectl aws gcloud az systemctl docker psql mysql redis-cli stripe mail sendmail"
)
_LOCAL = re.compile(r"@.*|(?!\w+://).*(?:/.*|\.[A-Za-z]\w{0,4})", re.DOTALL)  # a word that may name a file
_FILLER = re.compile(r"[\s'\"\\;]+")


def would_repeat(asked: Runs, new: Runs) -> bool:
    """Whether `new` runs something that changed something in `asked`."""
    if asked.commands is None or new.commands is None:
        return asked.commands is new.commands and _alike(asked, new)
    if not asked.shell and asked.tool == new.tool and asked.fields != new.fields:
        return False
    changed = [c for c in asked.commands if c.changes]
    known = [c for c in changed if c.program]
    if not all(c.program for c in new.commands) and any(_names(c, new.text) for c in known):
        return True
    if any(_repeats(c, found, new.text) for c in known for found in new.commands):
        return True
    if changed == known != []:
        return False
    if not changed and asked.commands:  # it changes something as a whole
        return all(any(_repeats(c, found, new.text) for found in new.commands) for c in asked.commands)
    return _filled(asked.text) in _filled(new.text)


def _alike(one: Runs, other: Runs) -> bool:
    return (one.tool, one.fields) == (other.tool, other.fields)


def _repeats(asked: Command, new: Command, text: str) -> bool:
    """Whether a command runs `asked` again. `text`: all of the call that it is in."""
    if new.code and _STARTS.search(new.code) and _names(asked, new.code):
        return True
    if not _same_path(asked.program, new.program) or asked.away != new.away:
        return False
    if asked.effects:
        return asked.effects == new.effects and _same_words(asked, new, text)
    if asked.input is not None and new.input is not None and asked.input != new.input:
        return False
    return _same_place(asked, new) and _same_words(asked, new, text)


def _same_path(one: str, other: str) -> bool:
    """`*/x` is an x in a folder that is not known."""
    if one[:2] == "*/" or other[:2] == "*/":
        return "/" in one and "/" in other and posixpath.basename(one) == posixpath.basename(other)
    return one == other


def _same_place(asked: Command, new: Command) -> bool:
    """A script is where its path says. A repository is one from each of its folders."""
    one, other = asked.folder, new.folder
    if "/" in asked.program or one == other or ANYWHERE in (one, other):
        return True
    if asked.program == "git":
        return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
    return asked.program in _ELSEWHERE and not any(_LOCAL.fullmatch(w.text or "") for w in asked.words)


def _same_words(asked: Command, new: Command, text: str) -> bool:
    a, b = asked.words, new.words
    if len(a) == len(b) and all(_same_word(x, y, asked.folder, new.folder) for x, y in zip(a, b, strict=True)):
        return True
    if any(w.text is None for w in b):  # the call's text has what they are, or nobody knows
        known = [w.text for w in b if w.text is not None]
        left = [w.text for w in a if w.text is not None and w.text not in known]
        return _in_order(known, a) and all(_named(word, text) for word in left)
    if len(a) == len(b) and any(w.text is None for w in a):
        return all(
            _same_word(x, y, asked.folder, new.folder)
            or (x.text is None and (y.text or "").startswith(x.begins) and not (y.text or "").startswith("-"))
            for x, y in zip(a, b, strict=True)
        )
    return False


def _same_word(one: Word, other: Word, folder: str, there: str) -> bool:
    a, b = one.text, other.text
    if a is None or b is None:
        return a is b and bool(one.source) and one.source == other.source
    if a == b or a.split() == b.split() != []:
        return True
    paths = "/" in f"{a}{b}" and "://" not in f"{a}{b}"
    return paths and posixpath.normpath(posixpath.join(folder, a)) == posixpath.normpath(posixpath.join(there, b))


def _in_order(words: Iterable[str], among: Sequence[Word]) -> bool:
    left = iter(w.text for w in among)
    return all(word in left for word in words)


def _names(asked: Command, text: str) -> bool:
    """Whether a text has all words of a command in it, in whatever order, and what it writes to."""
    words = [*map(posixpath.basename, (asked.program, *asked.effects)), *(w.text for w in asked.words if w.text)]
    return all(_named(word, text) for word in words)


def _named(word: str, text: str) -> bool:
    text = text[:MAX_TEXT]
    return word in text and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\w)", text) is not None


def _filled(text: str) -> str:
    """A text without what divides or quotes its words, for comparing what cannot be read."""
    return f" {_FILLER.sub(' ', text[:MAX_TEXT]).strip()} "
