"""Find what commands change that no rule of a program covers: redirections, variables, the shell's own commands, and
what commands that can each be repeated do together. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from wal_agent.shell.expand import assigned_names
from wal_agent.shell.match import is_live_file, program_name
from wal_agent.shell.rules import Classified
from wal_agent.shell.syntax import Redirect, Simple, Word

_LOOK_WHAT, _LOOK_FILE = "look for what it was to change", "look at the file"
READS = Classified("read_only", "shell-builtin", "only changes the shell that it runs in")
_APPENDS = Classified(
    "mutation",
    "redirect-append",
    "adds to the end of a file; a second time it adds it again",
    "look at the end of the file",
)
_WRITES = Classified(
    "idempotent", "redirect-write", "writes the whole of a file; the same again writes it again", _LOOK_FILE
)
_DEVICE = Classified("mutation", "redirect-device", "writes to a device or a file of the kernel", _LOOK_WHAT)
_LIVE = Classified("unknown", "redirect-live", "reads a device or a file of the kernel", _LOOK_WHAT)
_SETS = Classified("unknown", "environment", "sets a variable that may change what programs do", _LOOK_WHAT)
_BUILTIN = Classified("unknown", "shell-unknown", "uses the shell in a way that is not known here", _LOOK_WHAT)
WRITES_BACK = Classified(
    "mutation",
    "writes-back",
    "writes to a file what it made of that file; a second time it makes it of the result",
    _LOOK_FILE,
)
DRAWS = Classified(
    "mutation", "writes-random", "writes what is drawn anew each time, in the place of what was there", _LOOK_FILE
)

# Variables that change how output looks and nothing else, though their names say otherwise to what follows.
_SAFE_TEXT = """
    LC_ALL LANG LANGUAGE TZ NO_COLOR CI FORCE_COLOR CLICOLOR CLICOLOR_FORCE TERM COLUMNS LINES NODE_ENV DEBUG
    PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING PYTHONUTF8 DEBIAN_FRONTEND GIT_OPTIONAL_LOCKS
    GIT_TERMINAL_PROMPT PGPASSWORD
"""
_SAFE = frozenset(_SAFE_TEXT.split())
# Variables that name programs to run, files to read or write, options, or hosts to ask.
_ACTS = re.compile(
    r".*(?:PATH|PAGER|EDITOR|VISUAL|BROWSER|OPT|FLAGS|ARGS|CONF|COMMAND|CMD|HOME|FILE|LOG|TRACE|PROXY|WRAPPER|HOOK|INIT|PROFILE"
    r"|STARTUP|SHELL|SHELLOPTS|ASKPASS|OPEN|PRELOAD|PROMPT|HOST|URL|RC|DIR|ENDPOINT|SERVER|TARGET|CONTEXT|INDEX|REGISTRY).*"
    r"|(?:LD|DYLD|BASH|GIT|SSH|LESS|XDG|NODE|NPM|YARN|PNPM|BUN|DENO|PYTHON|PIP|UV|POETRY|PERL|RUBY|GEM|BUNDLE|JAVA|JDK|MAVEN"
    r"|GRADLE|CARGO|RUST|GO|CC|CXX|CMAKE|MAKE|GCC|CLANG|DOCKER|COMPOSE|BUILDKIT|KUBE|HELM|TF|TERRAFORM|PULUMI|AWS|AZURE|ARM|GCP"
    r"|GOOGLE|CLOUDSDK|GH|GITHUB|GITLAB|ANSIBLE|VAULT|SUDO|RSYNC|TAR|GREP|GZIP|ZIP|XZ|ZSTD|POSIX|HIST|IFS|MALLOC|ASAN|UBSAN|LSAN"
    r"|LLVM|GCOV|GPG|GNUPG|OPENSSL|SSL|CURL|WGET|HTTP|HTTPS|SQL|PG|MYSQL|REDIS|MONGO|MAIL|MAN|GROFF|TEX|LUA|PHP|R_|SYSTEMD|DPKG|APT"
    r"|LOC|NLS|GCONV|RES_|HTTPIE|JQ_LIB|AWK|BAT_|FZF|RIPGREP|SQLITE)(?:.*)|ENV|CDPATH|GLOBIGNORE|PS[0-4]|_"
)
_LOWER = re.compile(r"[a-z_][a-z0-9_]*")
_ACTS_LOWER = re.compile(r"(?:c?d?path|fpath|.*_proxy|npm_.*|ifs|_)")

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\+?=.*)?", re.DOTALL)
_OPTION = re.compile(r"[-+][A-Za-z]+")
_RUNS_LATER = re.compile(r"\$|`")
_ALWAYS = frozenset(["cd", "pushd", "popd", "dirs", "true", "false", ":", "type", "times", "logout"])
_COUNTS = frozenset(["exit", "return", "shift", "break", "continue", "wait"])  # a word of theirs is a number
_PLAIN = {  # what their words may be: others may be evaluated (a name with a subscript) or run (jobs -x)
    **dict.fromkeys(("exit", "return", "shift", "break", "continue", "history"), re.compile(r"\d+")),
    "wait": re.compile(r"-[fn]+|\d+|%\w+"),
    "jobs": re.compile(r"-[lnprs]+|%\w+"),
    "disown": re.compile(r"-[ahr]+|\d+|%\w+"),
    "getopts": re.compile(r"[\w:-]+"),
    "umask": re.compile(r"-[pS]+|[0-7]+|[ugoa=+rwx,-]+"),
    "ulimit": re.compile(r"-[A-Za-z]+|\d+|unlimited|hard|soft"),
}
_NAMES = frozenset(["export", "declare", "typeset", "local", "readonly", "read", "unset", "mapfile", "readarray"])


_REFERS = ("declare", "typeset", "local")  # -n: another variable is set by this one's name
_VALUES = {"read": "adinNptu", "mapfile": "dnOsucC", "readarray": "dnOsucC"}  # options that take a value


def redirect_effects(redirects: Iterable[Redirect]) -> list[Classified]:
    """What redirections change, one for each that does."""
    found = []
    for r in redirects:
        if r.to is None:
            continue
        text = r.to.text
        if r.op in ("<", "<<<", "<&"):
            if r.op == "<" and is_live_file(text if text is not None else r.to.begins):
                found.append(_LIVE)
        elif r.op in (">&", "&>") and text is not None and re.fullmatch(r"\d+|-|\d+-", text):
            continue
        elif r.op == "<>":
            found.append(_APPENDS)
        elif text in ("/dev/null", "/dev/stderr", "/dev/stdout") or re.fullmatch(r"/dev/fd/[0-9]", text or ""):
            continue
        elif is_live_file(text if text is not None else r.to.begins):
            found.append(_DEVICE)
        else:
            found.append(_APPENDS if r.op in (">>", "&>>") else _WRITES)
    return found


def variable_effects(names: Iterable[str]) -> list[Classified]:
    """What setting these variables may change."""
    return [] if all(_harmless(n) for n in names) else [_SETS]


def _harmless(name: str) -> bool:
    acts = _ACTS_LOWER if _LOWER.fullmatch(name) else _ACTS
    return name in _SAFE or acts.fullmatch(name) is None


def _tests_variable(words: Sequence[Word], i: int) -> bool:
    """Whether it is asked about a variable by something that may be evaluated (-v 'a[$(b)]')."""
    if words[i].text not in ("-v", "-R") or i + 1 >= len(words):
        return False
    return re.fullmatch(r"\w+|]", words[i + 1].text or "") is None


def _valued(letters: str, values: str) -> tuple[str, str, str]:
    """The letters of a word of options, the one of them that takes a value, and the value if it is attached."""
    at = next((i for i, c in enumerate(letters) if c in values), None)
    return (letters, "", "") if at is None else (letters[: at + 1], letters[at], letters[at + 1 :])


def _let(words: Sequence[Word]) -> Classified:
    names: list[str] = []
    for w in words:
        found = None if w.text is None or _RUNS_LATER.search(w.text) else assigned_names(w.text.encode())
        if found is None:
            return _BUILTIN
        names += found
    return _SETS if variable_effects(names) else READS


def builtin_effect(words: Sequence[Word]) -> Classified | None:
    """What a command of the shell itself changes; None for other commands, and those that rules or wrappers know."""
    name = words[0].text
    if name in _ALWAYS:
        return READS
    if name in _PLAIN:
        known = (name in _COUNTS if w.text is None else _PLAIN[name].fullmatch(w.text) for w in words[1:])
        return READS if all(known) else _BUILTIN
    if name == "set":
        return READS if not any(_RUNS_LATER.search(w.text or "") for w in words) else _BUILTIN
    if name in ("test", "["):
        return _BUILTIN if any(_tests_variable(words, i) for i in range(len(words))) else READS
    if name == "let":
        return _let(words[1:])
    if name not in _NAMES:
        return None
    names: list[str] = []
    value = False
    for w in words[1:]:
        text = w.text if w.text is not None else w.begins
        if value and w.text is None and not text:
            return _BUILTIN  # may be several words, and names among them
        if value or text == "--":
            value = False
            continue
        if name in _VALUES and w.text is not None and len(text) > 1 and text[0] == "-":
            letters, taken, rest = _valued(text[1:], _VALUES[name])
            if "C" in taken or not letters.isalpha():
                return _BUILTIN
            if taken == "a" and rest:
                names.append(rest)
            value = taken not in ("", "a") and not rest
            continue
        if _OPTION.fullmatch(text) and w.text is not None:
            if name == "unset" or ("n" in text and name in _REFERS):
                return _BUILTIN
            continue
        m = _NAME.fullmatch(text)
        if m is None or (w.text is None and "=" not in text):
            return _BUILTIN
        if w.text is not None and _RUNS_LATER.search(w.text) and name != "export":
            return _BUILTIN  # evaluated again where the variable is an integer or a reference
        names.append(m[1])
    return _SETS if variable_effects(names) else READS


_COPIES = frozenset({"cp", "mv", "install", "ln", "scp", "rsync"})  # read all operands but the last, and write that
_WRITES_ALL = frozenset({"tee", "sponge"})
_TO_FILE = frozenset({"-o", "--output", "-O", "--out", "-out"})
_SAYS_NOTHING_OF_IT = frozenset({"echo", "printf", "test", "[", "ls", "stat", "cd", "mkdir", "touch", "find", "rm"})
_RANDOM = frozenset({"shuf", "gshuf", "uuidgen", "pwgen", "mcookie", "apg", "makepasswd", "fortune", "jot"})
_RANDOM_OPENSSL = frozenset({"rand", "genrsa", "genpkey", "gendsa", "ecparam", "dhparam", "enc", "passwd", "req"})


def joint_effect(commands: Sequence[Simple]) -> Classified | None:
    """What the commands of one text do together that none of them does alone; None where nothing is seen."""
    writes = [set(_writes(c)) for c in commands]
    made: set[str] = set()  # files that went into something that was written, or into a pipe
    for c, written in zip(commands, writes, strict=True):
        reads = set(_reads(c))
        if reads & written and _name(c) not in _COPIES and _name(c) != "sort":
            return WRITES_BACK
        if written & made:
            return WRITES_BACK
        if written or not c.sure:
            made |= reads
    return DRAWS if any(writes) and any(_draws(c) for c in commands) else None


def _name(c: Simple) -> str:
    return (program_name(c.words[0]) or "") if c.words else ""


def _operands(c: Simple) -> list[str]:
    return [posixpath.normpath(w.text) for w in c.words[1:] if w.text and not w.text.startswith("-")]


def _writes(c: Simple) -> Iterator[str]:
    for r in c.redirects:
        if r.op in (">", ">|", "&>", ">&") and r.to is not None and r.to.text and not r.to.text.startswith("/dev/"):
            yield posixpath.normpath(r.to.text)
    name, operands = _name(c), _operands(c)
    if name in _COPIES and len(operands) > 1:
        yield operands[-1]
    elif name in _WRITES_ALL:
        yield from operands
    yield from _output_options(c)
    for w in c.words[1:]:
        if w.text and w.text.startswith(("of=", "--output=")):
            yield posixpath.normpath(w.text.partition("=")[2])


def _output_options(c: Simple) -> Iterator[str]:
    for option, value in pairwise(c.words):
        if option.text in _TO_FILE and value.text:
            yield posixpath.normpath(value.text)


def _reads(c: Simple) -> Iterator[str]:
    for r in c.redirects:
        if r.op == "<" and r.to is not None and r.to.text:
            yield posixpath.normpath(r.to.text)
    name, operands = _name(c), _operands(c)
    if name in _SAYS_NOTHING_OF_IT or name in _WRITES_ALL:
        return
    if name in _COPIES:
        yield from operands[:-1]
        return
    output = set(_output_options(c))
    yield from (o for o in operands if o not in output or operands.count(o) > 1)
    yield from (posixpath.normpath(o.removeprefix("if=")) for o in operands if o.startswith("if="))


def _draws(c: Simple) -> bool:
    name = _name(c)
    texts = [w.text or "" for w in c.words[1:]]
    if name == "openssl":
        return bool(texts) and texts[0] in _RANDOM_OPENSSL
    if name in ("sort", "gsort"):
        return any(t in ("--random-sort", "--sort=random") or (t[:1] == "-" != t[1:2] and "R" in t) for t in texts)
    if name in ("awk", "gawk", "mawk"):
        return any("rand(" in t for t in texts)
    if name == "gpg":
        return "--gen-random" in texts
    if name == "wg":
        return bool(texts) and texts[0] in ("genkey", "genpsk")
    return name in _RANDOM
