"""Commands that are given shell text to run: shells, ssh, eval, su and the like. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from wal_agent.records import Class
from wal_agent.recovery.wrapped import (
    InnerRun,
    WrapperSpec,
    _class_of_text,
    _count_options,
    _join_words,
    _split_names,
    _unknown,
)
from wal_agent.shell.syntax import Simple

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "rbash"})
_SHELL_LONG = frozenset({"--login", "--norc", "--noprofile", "--posix", "--verbose", "--noediting"})
_SSH_SAFE = re.compile(
    r"(?:StrictHostKeyChecking|BatchMode|ConnectTimeout|ConnectionAttempts|UserKnownHostsFile|GlobalKnownHostsFile|LogLevel"
    r"|ServerAlive\w+|TCPKeepAlive|Identit\w+|Port|User|HostName|Pubkey\w+|Password\w+|PreferredAuthentications|Compression"
    r"|ForwardAgent|RequestTTY|AddressFamily|CheckHostIP|VisualHostKey|HostKeyAlgorithms)[= ].*",
    re.IGNORECASE,
)
_HOST = re.compile(r"[\w.@:-]{1,60}", re.ASCII)  # what may stand in the prompt as it is


def _shell(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    i, checks, undone = 0, False, False
    while i < len(words):
        text = words[i].text
        if text is None:
            return _unknown("runs a script")
        if text in _SHELL_LONG:
            i += 1
        elif text in ("-", "--") or not re.match(r"[-+]", text):
            break
        elif text.startswith("--"):
            return _unknown("has options that are not known here")
        elif text[0] == "-" and "c" in text:
            if set(text[1:]) - set("lixeuvc"):
                return _unknown("has options that are not known here")
            rest = words[i + 1 :]
            while rest and (rest[0].text or "").startswith(("-", "+")):
                return _unknown("has options that are not known here")
            return (InnerRun(text=rest[0].text, shell=True, least=_class_of_text(rest[0].text)),) if rest else ()
        elif set(text[1:]) <= set("lixeuvns"):
            checks |= text[0] == "-" and "n" in text
            undone |= text[0] == "+" or "i" in text  # a shell that talks to somebody does not heed -n
            i += 1
        elif text[1:] in ("o", "eo", "euo", "euxo") and i + 1 < len(words):
            undone = True
            i += 2
        else:
            return _unknown("has options that are not known here")
    reads_input = i >= len(words) or words[i].text == "-" or any("s" in (w.text or "") for w in words[:i])
    if checks and not undone and i < len(words):
        return ()
    if reads_input:
        return (InnerRun(text=c.input, shell=True, least=_class_of_text(c.input)),)
    return _unknown("runs a script")


_SSH = WrapperSpec("46AaCfGKkMNnqsTtVvXxYy", "BbceIiJlmOpRLDWwo")


def _ssh(c: Simple) -> tuple[InnerRun, ...] | None:
    words = c.words[1:]
    if [w.text for w in words] in (["-V"], []):
        return None
    i = _count_options(_SSH, words)
    front = [w.text or "" for w in words[:i]] if i is not None else []
    for at, o in enumerate(front):
        value = o[2:] or (front[at + 1] if at + 1 < len(front) else "")
        if o.startswith("-o") and not _SSH_SAFE.fullmatch(value):
            i = None
        if re.match(r"-[a-zA-Z0-9]*[OWRLDJGIw]", o):
            i = None
    if i is None or i >= len(words) or words[i].text is None:
        return _unknown("has options or a host that are not known here")
    host, rest = words[i].text or "", list(words[i + 1 :])
    if rest and (rest[0].text or "").startswith("-"):
        more = _count_options(_SSH, rest)
        if more != 1 or rest[0].text not in ("-t", "-tt", "-T", "-q", "-n", "-v", "--"):
            return _unknown("has options that are not known here")
        rest = rest[1:]
    text = _join_words(rest) if rest else c.input
    away = f"on {host}" if _HOST.fullmatch(host) else "on another machine"
    return (InnerRun(text=text, shell=True, input=c.input if rest else None, away=away, least=_class_of_text(text)),)


def _eval(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    if words and words[0].text == "--":
        words = words[1:]
    if not words:
        return ()
    text = _join_words(words)
    return (InnerRun(text=text, shell=True, least=_class_of_text(text)),)


def _trap(c: Simple) -> tuple[InnerRun, ...]:
    words = [w for w in c.words[1:] if w.text != "--"]
    if len(words) < 2 or words[0].text in ("-", "", "-p", "-l"):
        return () if all(w.text is not None for w in words) else _unknown("sets a trap")
    return (InnerRun(text=words[0].text, shell=True, least=_class_of_text(words[0].text)),)


def _su(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    for i, w in enumerate(words):
        if w.text in ("-c", "--command") and i + 1 < len(words):
            others = [*words[:i], *words[i + 2 :]]
            if all(o.text is not None and re.fullmatch(r"-|-l|--login|-[ms]|[\w.-]+", o.text) for o in others):
                text = words[i + 1].text
                return (InnerRun(text=text, shell=True, least=_class_of_text(text)),)
    return _unknown("runs a shell of another user")


_WATCH = WrapperSpec(
    "dtegcxbpw",
    "n",
    _split_names("--differences --no-title --errexit --chgexit --color --exec --beep --precise --interval="),
)


def _watch(c: Simple) -> tuple[InnerRun, ...] | None:
    words = c.words[1:]
    i = _count_options(_WATCH, words)
    rest = words[i:] if i is not None else ()
    if not rest:
        return _unknown("has options that are not known here")
    text = _join_words(rest)
    return (InnerRun(text=text, shell=True, least=_class_of_text(text)),)


_FLOCK = WrapperSpec(
    "nxseuoFv", "wE", _split_names("--nonblock --exclusive --shared --timeout= --wait= --no-fork --verbose --close")
)


def _flock(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    i = _count_options(_FLOCK, words)
    if i is None or len(words) < i + 2 or words[i].text is None:
        return _unknown("has options that are not known here")
    least: Class = "idempotent"
    rest = words[i + 1 :]
    if rest[0].text in ("-c", "--command"):
        text = rest[1].text if len(rest) == 2 else None
        return (
            InnerRun(text=text, shell=True, least=least if text is not None else "unknown", why="makes a lock file"),
        )
    return (InnerRun(tuple(rest), input=c.input, least=least, why="makes a lock file"),)


def _parallel(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    end = next((i for i, w in enumerate(words) if w.text in (":::", "::::", ":::+")), len(words))
    text = _join_words([w for w in words[:end] if not (w.text or "").startswith("-")])
    return (InnerRun(text=text, shell=True, least="unknown", why="runs commands that are put together from parts"),)


_TEXT_WRAPPERS: Mapping[str, Callable[[Simple], tuple[InnerRun, ...] | None]] = {
    "ssh": _ssh,
    "eval": _eval,
    "trap": _trap,
    "su": _su,
    "watch": _watch,
    "flock": _flock,
    "parallel": _parallel,
    **dict.fromkeys(_SHELLS, _shell),
}
