"""Commands that are given the words of another command among their own: xargs, find -exec, git rebase --exec; and
openssl, which may send its input. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wal_agent.recovery.wrapped import (
    InnerRun,
    Words,
    WrapperSpec,
    _class_of_text,
    _count_options,
    _join_words,
    _split_names,
    _unknown,
)
from wal_agent.shell.syntax import Simple, Word

_ANYTHING = Word(None)
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


_XARGS = WrapperSpec(
    "0rtpxo",
    "ILnPsdaE",
    _split_names(
        "--null --no-run-if-empty --verbose --interactive --exit --max-args= --max-procs= --max-lines= --delimiter="
        " --arg-file= --replace= --max-chars="
    ),
    extra=re.compile(r"-[il]|-i.+|-[lL]\d+"),
)


def _xargs(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    i = _count_options(_XARGS, words)
    if i is None:
        return _unknown("has options that are not known here")
    rest = tuple(words[i:])
    if not rest:
        return ()
    marks = _marks([w.text or "" for w in words[:i]])
    if marks:  # asked about as it stands there too: what is put into a text may be told from the rest of it
        return (InnerRun(tuple(_fill_placeholder(w, marks) for w in rest)), InnerRun(rest))
    return (InnerRun((*rest, _ANYTHING)),)


def _marks(options: Sequence[str]) -> tuple[str, ...]:
    found = []
    for i, o in enumerate(options):
        if o.startswith("--replace"):
            found.append(o.partition("=")[2] or (options[i + 1] if i + 1 < len(options) else "") or "{}")
        elif o.startswith("-i"):
            found.append(o[2:] or "{}")
        elif o.startswith("-") and not o.startswith("--") and "I" in o:
            found.append(o.partition("I")[2] or (options[i + 1] if i + 1 < len(options) else "{}"))
    return tuple(m for m in found if m)


def _fill_placeholder(word: Word, marks: Sequence[str]) -> Word:
    """A word with what is put in the place of a mark."""
    text = word.text
    at = min((text.find(m) for m in marks if m in text), default=-1) if text is not None else -1
    return word if text is None or at < 0 else Word(None, text[:at])


def _find(c: Simple) -> tuple[InnerRun, ...] | None:
    own: list[Word] = []
    found: list[InnerRun] = []
    words = c.words
    start = words[1].text if len(words) > 1 and words[1].text and words[1].text[0] not in "-(!" else "."
    i = 0
    while i < len(words):
        if words[i].text not in _FIND_RUNS:
            own.append(words[i])
            i += 1
            continue
        end = next((j for j in range(i + 1, len(words)) if words[j].text == ";" or _plus(words, j)), None)
        if end is None or any(w.text is None and not w.begins for w in words[i + 1 : end]):
            return _unknown("runs a command that cannot be read")
        begins = "./" if words[i].text in ("-execdir", "-okdir") else start
        run = tuple(
            Word(None, begins) if w.text == "{}" else _fill_placeholder(w, ("{}",)) if w.text is not None else w
            for w in words[i + 1 : end]
        )
        found += [InnerRun(run), InnerRun(words[i + 1 : end])] if run else [InnerRun(shell=True, least="unknown")]
        i = end + 1
    if not found:
        return None
    return (replace(found[0], own=tuple(own)), *found[1:])


def _plus(words: Words, j: int) -> bool:
    return words[j].text == "+" and words[j - 1].text == "{}"


def _git(c: Simple) -> tuple[InnerRun, ...] | None:
    """Commands that git is told to run; the rules say of the rest of it what it is."""
    words = c.words
    texts = [w.text for w in words]
    found: list[InnerRun] = []
    for i, t in enumerate(texts[1:], 1):
        after = words[i + 1] if i + 1 < len(words) else None
        if t in ("-x", "--exec") and "rebase" in texts[:i]:
            found.append(InnerRun(text=after.text if after else None, shell=True, least="unknown"))
        elif t is not None and t.startswith("--exec=") and "rebase" in texts[:i]:
            found.append(InnerRun(text=t[7:], shell=True, least="unknown"))
        elif t == "run" and "bisect" in texts[:i]:
            found.append(InnerRun(words[i + 1 :], least="unknown"))
            break
        elif t == "foreach" and "submodule" in texts[:i]:
            rest = [w for w in words[i + 1 :] if w.text != "--recursive"]
            found.append(InnerRun(text=_join_words(rest), shell=True, least=_class_of_text(_join_words(rest))))
            break
    if not found:
        return None
    return (replace(found[0], own=words), *found[1:])


# Programs whose packages are known by the same name; `npx cat` would run a package that is not `cat`.
_CHECKERS = frozenset({"tsc", "prettier", "eslint", "stylelint", "biome"})
_NPX_HOW = frozenset({"--no-install", "--no", "--yes", "-y", "--prefer-offline", "--offline", "--"})


def _npx(c: Simple) -> tuple[InnerRun, ...] | None:
    """A checker as the project has it; where it has none it is fetched first."""
    i = next((i for i, w in enumerate(c.words) if i and w.text not in _NPX_HOW), len(c.words))
    if i == len(c.words) or c.words[i].text not in _CHECKERS:
        return None
    why = "runs a program of the project's packages, or fetches it first"
    return (InnerRun(c.words[i:], input=c.input, least="idempotent", why=why),)


def _openssl(c: Simple) -> tuple[InnerRun, ...] | None:
    """s_client sends its input to a host: nothing is sent where that is empty, or a Q, which ends it."""
    if len(c.words) < 2 or c.words[1].text != "s_client" or (c.input is not None and c.input.strip() in ("", "Q")):
        return None
    return _unknown("sends its input to a host")


_ARGV_WRAPPERS: Mapping[str, Callable[[Simple], tuple[InnerRun, ...] | None]] = {
    "xargs": _xargs,
    "gxargs": _xargs,
    "find": _find,
    "gfind": _find,
    "git": _git,
    "openssl": _openssl,
    "npx": _npx,
}
