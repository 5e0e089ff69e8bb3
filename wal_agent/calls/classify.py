"""Classify what a tool call may change (RECOVERY.md): pure, from the call's own words and the rules.

A mistake towards `read_only` lets a changing tool start before its intent is safe (I1), so all that is not plainly
known is `unknown`. Read-only calls are logged too: recovery does not rest on this being right.

Some commands change what no rule of a program covers: redirections, variables, the shell's own commands, and commands
that can each be repeated but not together.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise

from msgspec.structs import replace

from wal_agent.calls import inline_code
from wal_agent.calls.argv import program_name
from wal_agent.calls.call import ReadCall
from wal_agent.calls.rules.match import GENERAL_VERIFY, command_levels, is_live_file, match_rule
from wal_agent.calls.rules.project import ProjectRule, folder_after, match_command, match_tool
from wal_agent.calls.rules.table import AWAY, OURS, Classified, Rules, Shell
from wal_agent.calls.shell.syntax import Redirect, Script, Simple, Word, assigned_names
from wal_agent.calls.shell.wrappers import InnerRun, is_wrapper, unwrap
from wal_agent.records import Class

__all__ = ["Classified", "Rules", "classify", "classify_command", "tighten", "worse_class"]


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
_CHANGES = ("unknown", "mutation")
FOLDERS = ("dir_path", "directory", "workdir", "cwd")  # what agents call the folder that a command runs in
_MAX_COMMANDS = 200
_MAX_ALSO = 4  # commands beside the worst whose verifications are given one by one
_MAX_DEPTH = 8
_COPIES = frozenset({"cp", "mv", "install", "ln", "scp", "rsync"})  # read all operands but the last, and write that
_WRITES_ALL = frozenset({"tee", "sponge"})
_TO_FILE = frozenset({"-o", "--output", "-O", "--out", "-out"})
_SAYS_NOTHING_OF_IT = frozenset({"echo", "printf", "test", "[", "ls", "stat", "cd", "mkdir", "touch", "find", "rm"})
_RANDOM = frozenset({"shuf", "gshuf", "uuidgen", "pwgen", "mcookie", "apg", "makepasswd", "fortune", "jot"})
_RANDOM_OPENSSL = frozenset({"rand", "genrsa", "genpkey", "gendsa", "ecparam", "dhparam", "enc", "passwd", "req"})
UNREADABLE = Classified("unknown", "unreadable", "has an input that could not be read")
NO_RULE = Classified("unknown", "none", "is not known to wal-agent", GENERAL_VERIFY)
_UNPARSED = Classified("unknown", "shell-unreadable", "is shell text that cannot be read for certain", GENERAL_VERIFY)
_NOTHING = Classified("unknown", "shell-empty", "holds no command", GENERAL_VERIFY)
_TOO_MUCH = Classified("unknown", "shell-long", "holds too many commands to be sure of", GENERAL_VERIFY)
_OTHERS = Classified(
    "unknown", "shell-others", "runs other commands", "look for what its other commands were to change"
)
_PROGRAM = Classified("unknown", "program", "runs a program that wal-agent does not know", GENERAL_VERIFY)
_SCRIPT = Classified("unknown", "script", "runs a script or a program that its words do not name", GENERAL_VERIFY)
_FUNCTION = Classified("read_only", "function", "runs what the text itself says")
_FIELDS = Classified("unknown", "shell-field", "has a field whose meaning is not known to wal-agent", GENERAL_VERIFY)
_LOOKS = Classified("read_only", "wrapper", "only prints")
_CODE: Mapping[inline_code.Reads, Classified] = {
    "read_only": Classified("read_only", "code-reads", "is code that only reads and prints"),
    "idempotent": Classified(
        "idempotent",
        "code-imports",
        "is code that only reads and prints, unless the folder has modules by the names that it imports",
        "look in the folder for modules by the names that the code imports",
    ),
}
_RUNS_CODE = re.compile("python|node")
_BADNESS: Mapping[Class, int] = {"read_only": 0, "idempotent": 1, "unknown": 2, "mutation": 3}
_FOLDER = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}")


def redirect_effects(redirects: Iterable[Redirect]) -> list[Classified]:
    """What redirections change, one for each that does."""
    effects = []
    for r in redirects:
        if r.to is None:
            continue
        text = r.to.text
        if r.op in ("<", "<<<", "<&"):
            if r.op == "<" and is_live_file(text if text is not None else r.to.begins):
                effects.append(_LIVE)
        elif r.op in (">&", "&>") and text is not None and re.fullmatch(r"\d+|-|\d+-", text):
            continue
        elif r.op == "<>":
            effects.append(_APPENDS)
        elif text in ("/dev/null", "/dev/stderr", "/dev/stdout") or re.fullmatch(r"/dev/fd/[0-9]", text or ""):
            continue
        elif is_live_file(text if text is not None else r.to.begins):
            effects.append(_DEVICE)
        else:
            effects.append(_APPENDS if r.op in (">>", "&>>") else _WRITES)
    return effects


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
        assigned = None if w.text is None or _RUNS_LATER.search(w.text) else assigned_names(w.text.encode())
        if assigned is None:
            return _BUILTIN
        names += assigned
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
    return (program_name(c.words[0].text) or "") if c.words else ""


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


def classify(call: ReadCall, rules: Rules, explain: bool = True) -> Classified:
    """The class of a call. One whose input is no JSON object is unknown. `explain`: fill the sentences of the rule with
    the words of the call, which takes a look for secrets in them."""
    fields = call.fields
    return UNREADABLE if fields is None else _with_project(rules, lambda r: _classify_call(call, fields, r, explain))


def _classify_call(call: ReadCall, fields: dict[str, object], rules: Rules, explain: bool) -> Classified:
    tool = call.tool
    declared: Classified | None = None
    if rules.project and (rule := match_tool(rules.project, tool, fields)) is not None:
        why = rule.why or "is a tool that the project's own rules name"
        declared = _of_project(rule, why)
    shell = rules.shells.get(tool)
    if shell is None:
        return declared or rules.tools.get(tool, NO_RULE)
    by_text = _classify_shell(call, fields, shell, rules, explain)
    # A project's rule for the shell as such is for the commands that it has no rule for.
    return declared if declared is not None and by_text.source == OURS else by_text


def classify_command(text: str, rules: Rules) -> Classified:
    """The class of shell text in the workspace: that of the worst command in it."""
    call = ReadCall("", b"")
    return _with_project(rules, lambda r: _Parts(call, r, "").whole(text))


def classify_words(c: Simple, call: ReadCall, rules: Rules) -> Classified:
    """The class of one command of a call by the built-in rules, without its redirections."""
    return _Parts(call, rules.ours, "", explain=False).command(c)


def _with_project(rules: Rules, read: Callable[[Rules], Classified]) -> Classified:
    builtin = read(rules.ours)
    return tighten(builtin, read(rules)) if rules.project else builtin


def tighten(builtin: Classified, declared: Classified) -> Classified:
    """The class of a call by both kinds of rules. A project's files are a stranger's, so a rule of theirs can make a
    class worse and never better; `verify` and `ambiguous` stay the built-in ones, and what the project says is beside
    them. `declared`: what the rules say with the project's in front. This is the one place that decides between them.
    """
    if declared.source == OURS:
        return builtin  # the project has no rule for the call, or only for a part that is not its worst
    if _BADNESS[declared.cls] < _BADNESS[builtin.cls]:
        return replace(builtin, project=declared)
    verify, also, cd = builtin.verify, builtin.also, builtin.cd
    theirs = replace(declared, theirs=builtin.cls == "unknown")
    said = builtin.ambiguous
    return replace(declared, verify=verify, ambiguous=said, also=also, cd=cd, done_if=builtin.done_if, project=theirs)


def _of_project(rule: ProjectRule, why: str) -> Classified:
    return Classified(rule.cls, rule.name, why, rule.verify, rule.ambiguous, rule.source, done_if=rule.done_if)


def _classify_shell(call: ReadCall, fields: dict[str, object], shell: Shell, rules: Rules, explain: bool) -> Classified:
    command = fields.get(shell.field)
    folder = next((v for name in FOLDERS if isinstance(v := fields.get(name), str)), "")
    if isinstance(command, str):
        classified = _Parts(call, rules, folder, explain).whole(command)
    elif isinstance(command, list) and command and all(isinstance(w, str) for w in command):
        classified = _Parts(call, rules, folder, explain).words(tuple(Word(w, w) for w in command))
    else:
        return UNREADABLE
    # A field that we do not know (is_background, additional_permissions) may change what is done.
    return worse_of(classified, _FIELDS) if shell.strange(fields) else classified


def worse_of(one: Classified, other: Classified) -> Classified:
    """The worse of two; the first where they are equally bad."""
    return one if _rank(one) >= _rank(other) else other


def _rank(one: Classified) -> tuple[int, bool]:
    return _BADNESS[one.cls], not one.looks


def both(one: Classified, other: Classified) -> Classified:
    """The worse of two commands of one text, with how to verify the other: who looks at one alone and repeats the text
    repeats the other too."""
    worse, milder = (one, other) if _rank(one) >= _rank(other) else (other, one)
    if milder.cls not in _CHANGES:
        return worse
    also = {c.verify: c for c in worse.also}
    for c in (milder, *milder.also):
        one = _OTHERS if c.verify in ("", GENERAL_VERIFY) or len(also) >= _MAX_ALSO else replace(c, also=())
        if one.verify != worse.verify and c.verify != worse.verify:
            also.setdefault(one.verify, one)
    return replace(worse, also=tuple(also.values()))


def worse_class(one: Class, other: Class) -> Class:
    return max(one, other, key=_BADNESS.__getitem__)


class _Parts:
    """Goes through the commands of a text, and those that they run, and keeps the worst."""

    def __init__(self, call: ReadCall, rules: Rules, folder: str, explain: bool = True) -> None:
        self._call = call
        self._rules = rules
        self._explain = explain
        self._folder = folder  # as far as `cd` shows; only rules of the project ask for it
        self._cd = ""  # the folder behind each `cd`, seen from where the text began
        self._astray = False  # behind a `cd` whose folder or reach is not known
        self._seen = 0
        self._now = Simple(())  # what is being looked at, with its wrappers
        self._ran: list[Simple] = []  # commands without their wrappers, in their order

    def whole(self, text: str) -> Classified:
        classified = self.text(text)
        more = joint_effect(self._ran) if classified.cls == "idempotent" else None
        return more or classified

    def text(self, text: str, depth: int = 0) -> Classified:
        script = self._call.parse(text) if depth <= _MAX_DEPTH else None
        if script is None:
            return _UNPARSED
        classified: Classified | None = None
        began = self._folder, self._cd, self._astray
        self._cd, self._astray = "", False
        for c in script.commands:
            self._seen += 1
            if self._seen > _MAX_COMMANDS:
                return _TOO_MUCH if classified is None else worse_of(classified, _TOO_MUCH)
            one = self._simple(c, script, depth)
            if self._explain:
                one = self._there(one)
                self._note_folder(c)
            classified = one if classified is None else both(classified, one)
            if self._rules.project:
                self._folder = folder_after(self._folder, [w.text for w in c.words])
        self._folder, self._cd, self._astray = began
        return classified or _NOTHING

    def _note_folder(self, c: Simple) -> None:
        """Follow a `cd`, as far as the text shows where the commands behind it run."""
        name = c.words[0].text if c.words else ""
        if name not in ("cd", "pushd", "popd"):
            return
        to = c.words[-1].text or ""
        if name == "cd" and c.sure and len(c.words) == 2 and not to.startswith("-") and _FOLDER.fullmatch(to):
            self._cd = posixpath.join(self._cd, to)
        else:
            self._astray = True

    def _there(self, classified: Classified) -> Classified:
        """`classified`, to be verified where the text ran it."""
        if not (self._cd or self._astray) or classified.source != OURS:
            return classified
        classified = replace(classified, also=tuple(self._there(c) for c in classified.also))
        if classified.verify.split(" ", 1)[0] not in self._rules.begins or AWAY in classified.verify:
            return classified
        if self._astray:
            return replace(classified, verify=f"{classified.verify}{AWAY}: it may have run in another folder)")
        return replace(classified, cd=posixpath.join(self._cd, classified.cd) if classified.cd else self._cd)

    def words(self, words: tuple[Word, ...]) -> Classified:
        """The class of a command that no shell reads."""
        return self.command(Simple(words))

    def command(self, c: Simple) -> Classified:
        return self._command(c, None, 0)

    def _simple(self, c: Simple, script: Script, depth: int) -> Classified:
        around, self._now = self._now, c
        if c.redirects:
            self._ran.append(Simple((), redirects=c.redirects))
        classified = self._command(c, script, depth) if c.words else _LOOKS if c.redirects else _FUNCTION
        reads = bool(c.words) and c.words[0].text == "read"
        sets = [name for name in c.assigns if not (reads and name == "IFS")]  # how `read` divides its line
        for part in (*variable_effects(sets), *redirect_effects(c.redirects)):
            classified = classified if worse_of(classified, part) is classified else both(part, classified)
        self._now = around
        return classified

    def _command(self, c: Simple, script: Script | None, depth: int) -> Classified:
        """A command without regard to its redirections. `script`: the text whose functions it can call."""
        first = c.words[0]
        if script is not None and first.text in script.functions:
            return _FUNCTION
        if depth > _MAX_DEPTH:
            return _UNPARSED
        declared = self._declared(c)
        if declared is not None:
            return declared
        if _RUNS_CODE.search(first.text or "") and (code := inline_code.classify_code(c)) is not None:
            return _CODE[code]
        named = command_levels(c.words, self._rules)
        runs = unwrap(c, *named[0]) if named and (is_wrapper(named[0][0]) or is_wrapper(named[-1][0])) else None
        if runs is None:
            self._ran.append(Simple(c.words, redirects=self._now.redirects, sure=self._now.sure))
            return self._plain(c.words)
        parts: list[Classified] = []
        for r in runs:
            parts.append(self._inner(r, depth + 1))
            if r.own:
                parts.append(self._plain(r.own))
        return reduce(worse_of, parts) if parts else _LOOKS

    def _plain(self, words: tuple[Word, ...]) -> Classified:
        own = builtin_effect(words)
        if own is not None:
            return own
        if program_name(words[0].text) is None:
            return _SCRIPT
        return match_rule(words, self._rules, self._explain) or _PROGRAM

    def _inner(self, r: InnerRun, depth: int) -> Classified:
        least = Classified(r.least, "wrapper", r.why or "runs a command that its words do not tell", GENERAL_VERIFY)
        if r.shell:
            classified = worse_of(self.text(r.text, depth), least) if r.text is not None else least
            if r.text is None and r.least != "unknown":
                classified = worse_of(classified, _SCRIPT)
        else:
            classified = worse_of(self._command(Simple(r.words, input=r.input), None, depth), least)
        for part in variable_effects(r.sets):
            classified = worse_of(classified, part)
        if r.away:
            classified = _elsewhere(classified, f"{AWAY}: it ran {r.away})")
        return classified

    def _declared(self, c: Simple) -> Classified | None:
        """What a rule of the project says of a command."""
        if not self._rules.project:
            return None
        rule = match_command(self._rules.project, [w.text for w in c.words], self._folder)
        if rule is None:
            return None
        why = rule.why or "is a command that the project's own rules name"
        return _of_project(rule, why)


def _elsewhere(classified: Classified, place: str) -> Classified:
    """`classified` with the place where to verify it."""
    verify = f"{classified.verify}{place}" if classified.verify else ""
    return replace(classified, verify=verify, also=tuple(_elsewhere(c, place) for c in classified.also))
