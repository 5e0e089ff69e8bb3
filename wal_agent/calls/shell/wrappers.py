"""Find what commands that run other commands run (sudo, env, xargs, bash -c, ssh, find -exec, ...). Pure.

wrappers.toml lists those that take options and a command; the others are here. An option that is not listed makes it
unknown what runs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.calls.argv import program_name
from wal_agent.calls.shell.syntax import Script, Simple, Word
from wal_agent.records import Class

Words = Sequence[Word]
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=.*", re.DOTALL)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "rbash"})
_SHELL_LONG = frozenset({"--login", "--norc", "--noprofile", "--posix", "--verbose", "--noediting"})
_SSH_SAFE = re.compile(
    r"(?:StrictHostKeyChecking|BatchMode|ConnectTimeout|ConnectionAttempts|UserKnownHostsFile|GlobalKnownHostsFile|LogLevel"
    r"|ServerAlive\w+|TCPKeepAlive|Identit\w+|Port|User|HostName|Pubkey\w+|Password\w+|PreferredAuthentications|Compression"
    r"|ForwardAgent|RequestTTY|AddressFamily|CheckHostIP|VisualHostKey|HostKeyAlgorithms)[= ].*",
    re.IGNORECASE,
)
_HOST = re.compile(r"[\w.@:-]{1,60}", re.ASCII)  # what the prompt may show as it is
_ANYTHING = Word(None)
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# Programs whose packages are known by the same name; `npx cat` would run a package that is not `cat`.
_CHECKERS = frozenset({"tsc", "prettier", "eslint", "stylelint", "biome"})
_NPX_HOW = frozenset({"--no-install", "--no", "--yes", "-y", "--prefer-offline", "--offline", "--"})
_PREFIXES = frozenset(
    {"sudo", "doas", "env", "timeout", "gtimeout", "nice", "ionice", "nohup", "time", "stdbuf", "command"}
)
_MOVES = frozenset({"-C", "--chdir", "-D", "-R", "-b", "-i"})  # another folder, root, time or environment

_CODE = re.compile(r'"?[^$`"\\]*(?:\$\?|\$\{\?\})[^$`"\\]*"?')  # words around the exit code before


class InnerRun(msgspec.Struct, frozen=True):
    """What a wrapper runs: a command, or with `shell` a text (None: not known). `input`: what that reads, if known.

    `sets`: variables set for it. `away`: where it runs, if not on this machine. `least`: it is at least this bad, and
    `why`."""

    words: tuple[Word, ...] = ()
    text: str | None = None
    shell: bool = False
    input: str | None = None
    sets: tuple[str, ...] = ()
    away: str = ""
    least: Class = "read_only"
    why: str = ""
    own: tuple[Word, ...] = ()  # the command that is left of the wrapper itself, for the rules


class WrapperSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wrapper that takes options, `skip` operands, and then a command; a row of wrappers.toml."""

    flags: str = ""
    values: str = ""
    long: str = ""  # names with a space between them; "--x" is a flag, "--x=" takes a value
    skip: int = 0
    sets: bool = False  # assignments may come before the command
    extra: str = ""  # a pattern of more words that are options
    least: Class = "read_only"
    why: str = ""
    alone: bool = False  # without a command it only prints
    away: bool = False
    dashes: bool = False  # the command comes after "--"
    names: tuple[str, ...] = ()


def _unknown(why: str) -> tuple[InnerRun, ...]:
    return (InnerRun(shell=True, least="unknown", why=why),)


def _read_wrapper(w: WrapperSpec, words: Words, c: Simple, away: str = "") -> tuple[InnerRun, ...]:
    i = _count_options(w, words)
    if i is None:
        return _unknown("has options that are not known here")
    sets: list[str] = []
    while w.sets and i < len(words) and (m := _ASSIGN.fullmatch(words[i].text or words[i].begins)):
        sets.append(m[1])
        i += 1
    if i < len(words) and words[i].text is None and w.skip == 0:
        return _unknown("runs a command that only the shell knows")
    skipped = words[i : i + w.skip]
    if any(s.text is None for s in skipped):
        return _unknown("runs a command that only the shell knows")
    i += w.skip
    if w.dashes:
        more = _count_options(w, words[i:])
        if more is None or words[i + more - 1].text != "--":
            return _unknown("runs a command that its options do not show")
        i += more
    rest = tuple(words[i:])
    if not rest:
        return () if w.alone else _unknown("runs nothing that stands there") if not c.redirects else ()
    return (InnerRun(rest, input=c.input, sets=tuple(sets), away=away if w.away else "", least=w.least, why=w.why),)


def _count_options(w: WrapperSpec, words: Words) -> int | None:
    """How many words are options and their values; None if one is not known."""
    i = 0
    while i < len(words):
        text = words[i].text
        if text is None:
            return i if words[i].begins and not words[i].begins.startswith("-") else None
        if text == "--":
            return i + 1
        if not text.startswith("-") or text == "-":
            return i
        if text.startswith("--"):
            name, equals, _value = text.partition("=")
            long = w.long.split()
            if f"{name}{equals}" in long:
                i += 1
            elif f"{name}=" in long:
                i += 2
            else:
                return None
        elif w.extra and re.fullmatch(w.extra, text):
            i += 1
        else:
            took = _cluster(text[1:], w)
            if took is None:
                return None
            i += took
    return i


def _cluster(letters: str, w: WrapperSpec) -> int | None:
    for at, c in enumerate(letters):
        if c in w.values:
            return 2 if at == len(letters) - 1 else 1
        if c not in w.flags:
            return None
    return 1


def _run_text(text: str | None) -> InnerRun:
    return InnerRun(text=text, shell=True, least="unknown" if text is None else "read_only")


def _join_words(words: Words) -> str | None:
    return None if any(w.text is None for w in words) else " ".join(w.text or "" for w in words)


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
            return (_run_text(rest[0].text),) if rest else ()
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
        return (_run_text(c.input),)
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
    return (replace(_run_text(text), input=c.input if rest else None, away=away),)


def _eval(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[2:] if [w.text for w in c.words[1:2]] == ["--"] else c.words[1:]
    return (_run_text(_join_words(words)),) if words else ()


def _trap(c: Simple) -> tuple[InnerRun, ...]:
    words = [w for w in c.words[1:] if w.text != "--"]
    if len(words) < 2 or words[0].text in ("-", "", "-p", "-l"):
        return () if all(w.text is not None for w in words) else _unknown("sets a trap")
    return (_run_text(words[0].text),)


def _su(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    for i, w in enumerate(words):
        if w.text in ("-c", "--command") and i + 1 < len(words):
            others = [*words[:i], *words[i + 2 :]]
            if all(o.text is not None and re.fullmatch(r"-|-l|--login|-[ms]|[\w.-]+", o.text) for o in others):
                return (_run_text(words[i + 1].text),)
    return _unknown("runs a shell of another user")


_WATCH = WrapperSpec(
    "dtegcxbpw",
    "n",
    "--differences --no-title --errexit --chgexit --color --exec --beep --precise --interval=",
)


def _watch(c: Simple) -> tuple[InnerRun, ...] | None:
    words = c.words[1:]
    i = _count_options(_WATCH, words)
    rest = words[i:] if i is not None else ()
    if not rest:
        return _unknown("has options that are not known here")
    return (_run_text(_join_words(rest)),)


_FLOCK = WrapperSpec("nxseuoFv", "wE", "--nonblock --exclusive --shared --timeout= --wait= --no-fork --verbose --close")


def _flock(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    i = _count_options(_FLOCK, words)
    if i is None or len(words) < i + 2 or words[i].text is None:
        return _unknown("has options that are not known here")
    rest, why = words[i + 1 :], "makes a lock file"
    if rest[0].text in ("-c", "--command"):
        text = rest[1].text if len(rest) == 2 else None
        return (InnerRun(text=text, shell=True, least="idempotent" if text is not None else "unknown", why=why),)
    return (InnerRun(tuple(rest), input=c.input, least="idempotent", why=why),)


def _parallel(c: Simple) -> tuple[InnerRun, ...]:
    words = c.words[1:]
    end = next((i for i, w in enumerate(words) if w.text in (":::", "::::", ":::+")), len(words))
    text = _join_words([w for w in words[:end] if not (w.text or "").startswith("-")])
    return (InnerRun(text=text, shell=True, least="unknown", why="runs commands that are put together from parts"),)


_XARGS = WrapperSpec(
    "0rtpxo",
    "ILnPsdaE",
    (
        "--null --no-run-if-empty --verbose --interactive --exit --max-args= --max-procs= --max-lines= --delimiter="
        " --arg-file= --replace= --max-chars="
    ),
    extra=r"-[il]|-i.+|-[lL]\d+",
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
    if marks:  # classified as written, too: the rest of a text may show what is put into it
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
    """Find the commands that git is given to run; the rules classify the rest of it."""
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
            found.append(_run_text(_join_words(rest)))
            break
    if not found:
        return None
    return (replace(found[0], own=words), *found[1:])


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


_SPECIAL_WRAPPERS: Mapping[str, Callable[[Simple], tuple[InnerRun, ...] | None]] = {
    **dict.fromkeys(_SHELLS, _shell),
    **dict.fromkeys(("xargs", "gxargs"), _xargs),
    **dict.fromkeys(("find", "gfind"), _find),
    "ssh": _ssh,
    "eval": _eval,
    "trap": _trap,
    "su": _su,
    "watch": _watch,
    "flock": _flock,
    "parallel": _parallel,
    "git": _git,
    "openssl": _openssl,
    "npx": _npx,
}


class _WrapperFile(msgspec.Struct, forbid_unknown_fields=True):
    """wrappers.toml. `container`: by the name that the rules have for them."""

    prefix: list[WrapperSpec]
    container: list[WrapperSpec]


_decode_file = msgspec_compat.of_values(_WrapperFile)


@cache
def _listed_wrappers() -> tuple[Mapping[str, WrapperSpec], Mapping[str, WrapperSpec]]:
    """Those that stand before a command, and those that run one in a container, by name; read once."""
    found = _decode_file(tomllib.loads(files("wal_agent.calls.shell").joinpath("wrappers.toml").read_text("utf-8")))
    prefix, container = ({name: spec for spec in all for name in spec.names} for all in (found.prefix, found.container))
    return prefix, container


def is_wrapper(name: str) -> bool:
    """Whether `unwrap` knows the name."""
    return name in _SPECIAL_WRAPPERS or any(name in listed for listed in _listed_wrappers())


def unwrap(c: Simple, name: str, taken: int) -> tuple[InnerRun, ...] | None:
    """What a command runs if it is a wrapper; None if it is none, () if it runs nothing, a text that is None where
    that is not known. `name`: what the rules call it (docker exec); `taken`: how many of its words that is."""
    words = c.words
    first = program_name(words[0].text) if words else None
    if first is None:
        return None
    prefix, container = _listed_wrappers()
    if name in container:
        found = _read_wrapper(container[name], words[taken:], c, f"in a container ({name})")
        return tuple(replace(f, own=words) for f in found) if name.endswith(" run") else found
    if first in _SPECIAL_WRAPPERS:
        return _SPECIAL_WRAPPERS[first](c)
    if first == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
        return ()
    if first in prefix:
        return _read_wrapper(prefix[first], words[1:], c, "under another root")
    return None


def literal_commands(script: Script | None) -> tuple[Simple, ...] | None:
    """The commands of a text, in its order, if every word of them is literal and each runs for sure. What only says
    how (sudo, env, timeout, nice, nohup, time, stdbuf) is taken away, and `$?` that is only printed stands as it is
    written. None for all other texts."""
    if script is None or script.functions or not script.commands:
        return None
    found = [_strip_prefixes(_with_code(c)) for c in script.commands]
    return None if None in found else tuple(c for c in found if c is not None)


def _with_code(c: Simple) -> Simple:
    if not c.words or c.words[0].text not in ("echo", "printf"):
        return c
    known = (replace(w, text=w.source) if w.text is None and _CODE.fullmatch(w.source) else w for w in c.words)
    return replace(c, words=tuple(known))


def _strip_prefixes(c: Simple, depth: int = 0) -> Simple | None:
    if not c.sure or any(w.text is None for w in c.words) or depth > 8:
        return None
    if not c.words or c.words[0].text not in _PREFIXES:
        return c
    found = unwrap(c, "", 0)
    if not found or len(found) != 1 or not found[0].words:
        return c if found == () else None
    one = found[0]
    front = c.words[1 : len(c.words) - len(one.words)]
    if any((w.text or "").partition("=")[0] in _MOVES for w in front):
        return None
    return _strip_prefixes(replace(c, words=one.words, assigns=(*c.assigns, *one.sets)), depth + 1)
