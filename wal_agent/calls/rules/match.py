"""Find the rule that holds for the words of one command, and whether the text of one SQL statement only reads. Pure.

A word that only the shell knows may be any number of words, and options. A rule that says that something only reads, or
that it can be done again, holds only if that makes no difference to it.

A SQL statement is taken apart into tokens; each word in front of a "(" must be a function or a keyword of reading.toml,
so one that writes (writefile, load_extension, nextval) or one of the user's own makes it unknown. What a view does is
not in the words: the rule that uses this says what that means for it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from wal_agent import msgspec_compat
from wal_agent.calls.argv import program_name
from wal_agent.calls.rules.table import AWAY, Classified, Command, Options, Rules
from wal_agent.calls.shell.syntax import Word
from wal_agent.redact import redact

MAX_STATEMENT: Final = 8 << 10  # characters
_SQL_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*(?:\n|\Z)|/\*(?:(?!\*/|/\*).)*\*/)
    |(?P<comment>/\*)
    |(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")
    |(?P<word>[A-Za-z_][\w$]*)|(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)
    |(?P<cast>::)|(?P<mark>[-+*/<>=~!@\#%^&|?(),.;])""",
    re.VERBOSE | re.DOTALL,
)
_TABLE_PLACES: Final = frozenset({"from", "join", "table"})
_SQL_NAME: Final = re.compile(r"[\w.:/@?=&%+-]+")  # of a database or a host
GENERAL_VERIFY = "look for what it was to change"
_MAX_VERIFY = 300  # characters
_ACTS_SHORTEST = 4  # letters of a name that is cut short (--upload for --upload-pack)
_PLACES = re.compile(r"\{(operands|first|last|refs)\}")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
# Reading these can consume or change something (a FIFO of a service, a device, a kernel file).
_LIVE_FILE = re.compile(r"(?:^|=|\.\.)(?:/(?:dev|proc|sys|run)(?:/|$)|/?(?:dev|proc|sys|run)/)")
_STILL_FILE = re.compile(
    r"(?:/dev/(?:null|stdin|zero)|/proc/(?:cpuinfo|meminfo|version|loadavg|uptime|mounts|stat|filesystems|cmdline)"
    r"|/proc/(?:\d+|self)/(?:status|stat|cmdline|limits|cgroup|maps|mounts)|/sys/fs/cgroup/[a-z0-9._/-]+)"
)
# Settings that git may be given on its command line without running anything else for it.
_GIT_SETTING = re.compile(
    r"(?:user\.(?:name|email)|color\.\w+|advice\.\w+|core\.(?:quotepath|autocrlf|safecrlf|filemode|ignorecase|abbrev)"
    r"|(?:commit|tag)\.gpgsign|init\.defaultbranch|pull\.(?:rebase|ff)|push\.default|protocol\.version|log\.\w+"
    r"|safe\.directory|gc\.auto|rebase\.autosquash|merge\.conflictstyle|fetch\.prune)=.*",
    re.IGNORECASE,
)
# Long options that name something to run, load or send to, keep what they replace under a new name each time, or draw
# anew each time. A rule that says "can be done again" covers one of them only where it names it.
_ACTING_TEXT = """
    upload-pack receive-pack uploadpack receivepack exec execute execdir toolexec command cmd script to-command
    rsh-command ssh-command remote-command new-volume-script info-script use-compress-program checkpoint-action rsh
    rsync-path unzip-command filter-program filter-process lua-filter plugin plugins plugin-dir plugin-path
    pkcs11-module engine provider provider-path loader load-extension preload require hook hooks hookdir hook-dir
    eval editor pager pre-invoke post-invoke vettool pdf-engine compiler linker wrapper launcher interpreter runner
    push publish upload deploy send notify mail submit sign-key append backup backup-dir suffix remove-source-files
    random-source ext-diff strip-program config-command credential-helper output-plugin build-backend
    script-shell from-module migrate-state fplugin specs processor processorpath processor-path daemon
"""
ACTING_OPTIONS = frozenset(_ACTING_TEXT.split())
# Words that do the same: values of git -c, ssh -o, go -ldflags, apt -o, docker --output and of compilers.
_ACTING_VALUE = re.compile(
    r"(?i)\b(?:proxycommand|localcommand|knownhostscommand|pkcs11provider|securitykeyprovider|sshcommand|hookspath|fsmonitor)\b"
    r"|-extld\b|::(?:pre|post)-(?:install-pkgs|invoke)|\bdir::bin\b|\bext::|\btype=registry\b|\bpush=true\b"
    r"|^(?:-C)?linker=|^-B[./]|^-J-|^(?:rtmps?|srt|rtp|udp|tcp|icecast)://|^[/-]p:(?:publishprofile|deployonbuild)"
)


class SqlNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begins: frozenset[str]
    never: frozenset[str]
    before_call: frozenset[str]


class PythonNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    builtins: frozenset[str]
    attributes: frozenset[str]
    modules: dict[str, frozenset[str]]


class ReadingNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names in reading.toml, with which code only reads."""

    sql: SqlNames
    python: PythonNames


_decode_names = msgspec_compat.of_values(ReadingNames)


@cache
def reading_names() -> ReadingNames:
    return _decode_names(
        _word_lists(tomllib.loads(files("wal_agent.calls.rules").joinpath("reading.toml").read_text("utf-8")))
    )


def _word_lists(value: Any) -> Any:
    """The words of each text in a table."""
    return {key: _word_lists(inner) for key, inner in value.items()} if isinstance(value, dict) else value.split()


def is_sql_operand(text: str, what: str) -> bool:
    """Whether an operand is what a rule of the data asks for: "query" a statement that only reads, "constant" one that
    asks no table either; "name or ..." also the name of a database."""
    kind = what.removeprefix("name or ")
    if kind != what and _SQL_NAME.fullmatch(text) and text.lower() not in reading_names().sql.never:
        return True
    return sql_only_reads(text, tables=kind == "query")


def sql_only_reads(text: str, tables: bool = True) -> bool:
    """Whether `text` is one statement that asks, and calls nothing that is not known to read."""
    tokens = _sql_tokens(text)
    if tokens is None or not tokens:
        return False
    if tokens[-1] == ("mark", ";"):
        tokens.pop()
    words = [value for kind, value in tokens if kind == "word"]
    known = reading_names().sql
    if not tokens or tokens[0][0] != "word" or tokens[0][1] not in known.begins:
        return False
    if not known.never.isdisjoint(words):
        return False
    if not tables and not _TABLE_PLACES.isdisjoint(words):
        return False
    for i, (kind, value) in enumerate(tokens):
        if (kind, value) in (("mark", ";"), ("mark", ":")):
            return False
        if kind != "mark" or value != "(" or i == 0:
            continue
        before_kind, before = tokens[i - 1]
        if before_kind == "name" or (before_kind == "word" and before not in known.before_call):
            return False
        if before_kind == "word" and i > 1 and tokens[i - 2] == ("mark", "."):
            return False  # another schema's function
    return True


def _sql_tokens(text: str) -> list[tuple[str, str]] | None:
    """(kind, value in lower case) without spaces and comments; None where a character is none of them."""
    if len(text) > MAX_STATEMENT or "\\" in text or "$" in text or "\0" in text:
        return None
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        m = _SQL_TOKEN.match(text, at)
        if m is None or m.end() == at:
            return None
        at = m.end()
        if m.lastgroup == "comment":
            return None  # one that is not closed, or has another one inside: databases differ in where it ends
        if m.lastgroup not in (None, "space"):
            found.append((str(m.lastgroup), m[0].lower()))
    return found


def is_live_file(word: str) -> bool:
    """Whether a file of this name may be more than a file."""
    return _LIVE_FILE.search(word) is not None and (_STILL_FILE.fullmatch(word) is None or ".." in word)


def command_levels(words: Sequence[Word], rules: Rules) -> list[tuple[str, int]]:
    """The names of a command, with how many of its words each takes: git, git stash, git stash list; longest first."""
    name = program_name(words[0].text) if words else None
    if name is None:
        return []
    found = [(name, 1)]
    i = 1
    while i < len(words):
        text = words[i].text
        if text is None:
            break
        if f"{name} {text}" in rules.begins:
            name = f"{name} {text}"
            i += 1
            found.append((name, i))
            continue
        passed = _skipped(words, i, rules.options.get(name))
        if passed == 0:
            break
        i += passed
    return found[::-1]


def match_rule(words: Sequence[Word], rules: Rules, explain: bool = True) -> Classified | None:
    """The first rule that holds for a command without wrappers; None if none does. `explain`: fill its sentences."""
    for name, taken in command_levels(words, rules):
        for rule in rules.commands.get(name, ()):
            operands = _holds(rule, words[taken:])
            if operands is not None:
                return _explained(rule, words, taken, rules) if explain else _classified(rule)
    return None


def _skipped(words: Sequence[Word], i: int, options: Options | None) -> int:
    text = words[i].text
    if options is None or text is None:
        return 0
    if text in options.flags:
        return 1
    if text == "-c" and words[0].text == "git" and i + 1 < len(words):
        return 2 if _GIT_SETTING.fullmatch(words[i + 1].text or "") else 0
    if text in options.values:
        value = words[i + 1] if i + 1 < len(words) else None
        return 2 if value is not None and value.text is not None else 0
    return 1 if text.startswith("-") and text.partition("=")[0] in options.values and "=" in text else 0


class _Read(msgspec.Struct, frozen=True):
    word: Word
    kind: str  # option, operand, unknown (may be either, and more than one)


def _split(rule: Command, words: Sequence[Word]) -> Iterator[_Read]:
    """Options and operands; what an option of `values` takes is left out."""
    only = False
    skip = False
    for word in words:
        text = word.text
        if skip and text is not None:
            skip = False
            continue
        skip = False
        if text is None:
            literal = word.begins != "" and not word.begins.startswith("-")
            yield _Read(word, "operand" if only or literal else "unknown")
        elif only or len(text) < 2 or not text.startswith("-"):
            yield _Read(word, "operand")
        elif text == "--":
            only = True
        else:
            yield _Read(word, "option")
            skip = _takes(rule, text)


def _takes(rule: Command, text: str) -> bool:
    """Whether an option takes the next word."""
    if text in rule.values:
        return True
    if text.startswith("--"):
        return False
    taker = next((i for i, c in enumerate(text[1:], 1) if f"-{c}" in rule.values), None)
    return taker == len(text) - 1


def _holds(rule: Command, words: Sequence[Word]) -> list[Word] | None:
    """The operands, if the rule holds."""
    mild = rule.cls in ("read_only", "idempotent")
    read = list(_split(rule, words))
    given = [r for r in read if r.word.text is not None]
    operands = [r.word for r in read if r.kind != "option"]
    unknown = any(r.kind == "unknown" for r in read)
    if rule.any and not any(_is(r, wanted, rule, not mild) for r in given for wanted in rule.any):
        return None
    if rule.none and any(_is(r, barred, rule, True) for r in given for barred in rule.none):
        return None
    if unknown and not rule.free and (rule.cls == "read_only" or (mild and (rule.listed or rule.none))):
        return None
    if rule.cls == "read_only" and any(is_live_file(w.text if w.text is not None else w.begins) for w in words):
        return None
    if rule.value and not all(_value_holds(rule, words, i) for i in range(len(words))):
        return None
    if rule.cls == "idempotent" and not rule.listed and any(_acts(r, rule) for r in given):
        return None
    if rule.listed and not all(_listed(r.word.text or "", rule) for r in read if r.kind == "option"):
        return None
    if rule.first is not None and not (operands and _matches(operands[0], rule.first)):
        return None
    rest = operands[1:] if rule.first is not None else operands
    if rule.operands is not None and not all(_matches(w, rule.operands) for w in rest):
        return None
    if rule.sql and not all(w.text is not None and is_sql_operand(w.text, rule.sql) for w in rest):
        return None
    if rule.line is not None and (
        any(w.text is None for w in operands) or rule.line.fullmatch(" ".join(w.text or "" for w in operands)) is None
    ):
        return None
    return operands


def _value_holds(rule: Command, words: Sequence[Word], i: int) -> bool:
    """Whether the value that the option at `i` takes, here or as its next word, is one that the rule allows."""
    text = words[i].text or ""
    if len(text) < 2 or text[0] != "-":
        return True
    name, equals, value = text.partition("=")
    if name not in rule.value:
        at = -1 if text.startswith("--") else next((n for n, c in enumerate(text) if n and f"-{c}" in rule.value), -1)
        if at < 0:
            return True
        name, value = f"-{text[at]}", text[at + 1 :].removeprefix("=")
        equals = value
    if not equals:
        value = (words[i + 1].text or "") if i + 1 < len(words) else ""
    return rule.value[name].fullmatch(value) is not None


def _acts(read: _Read, rule: Command) -> bool:
    """Whether a word is of those that no rule may take for harmless that does not name it."""
    if _ACTING_VALUE.search(read.word.text or ""):
        return True
    text = (read.word.text or "").partition("=")[0]
    if read.kind != "option" or text in rule.any or f"{text}=" in rule.any:
        return False
    name = text.lstrip("-")
    if name in ACTING_OPTIONS:
        return True
    return text.startswith("--") and len(name) >= _ACTS_SHORTEST and any(a.startswith(name) for a in ACTING_OPTIONS)


def _matches(word: Word, pattern: re.Pattern[str]) -> bool:
    return word.text is not None and pattern.fullmatch(word.text) is not None


def _is(read: _Read, wanted: str, rule: Command, loosely: bool) -> bool:
    """Whether a word is the one that is wanted; a short option also among others (-rd), and `loosely` a long one cut
    short (--del) or with a value."""
    text = read.word.text or ""
    if text == wanted:
        return True
    if read.kind != "option":
        return False
    if wanted.startswith("--"):
        name = text.partition("=")[0]
        return name == wanted or (loosely and len(name) > 3 and wanted.startswith(name))
    if len(wanted) == 2 and wanted[0] == "-" and not text.startswith("--"):
        return wanted[1] in _cluster(text, rule)
    return False


def _cluster(text: str, rule: Command) -> str:
    """The letters of a word of short options, without the value of one."""
    letters = text[1:]
    taker = next((i for i, c in enumerate(letters) if f"-{c}" in rule.values), None)
    return letters if taker is None else letters[: taker + 1]


def _listed(text: str, rule: Command) -> bool:
    if text.startswith("--"):
        name, equals, _value = text.partition("=")
        return name + equals in rule.long or text in rule.long
    if text in rule.long:
        return True  # -name
    name, equals, _value = text.partition("=")
    if equals and name + equals in rule.long:
        return True
    return set(_cluster(text, rule)) <= rule.short


def _refs_there(refspecs: Iterable[str]) -> Iterator[str]:
    """The refs that a push with these refspecs changes at the remote, as far as their words say."""
    for refspec in refspecs:
        source, colon, target = refspec.removeprefix("+").partition(":")
        there = target if colon else source
        if there not in ("", "HEAD", "@"):  # without a name of its own: that of the branch here
            yield there


class _Choice(NamedTuple):
    """An option that chooses what a command is about, with its value. `front`: it precedes the subcommand."""

    option: str
    words: tuple[Word, ...]
    front: bool


def _choices(words: Sequence[Word], taken: int, rules: Rules) -> tuple[list[_Choice], list[Word]]:
    """The choices in a command whose name takes `taken` words, and the rest behind the name."""
    found: list[_Choice] = []
    left: list[Word] = []
    levels = [(end, rules.options.get(name, Options())) for name, end in command_levels(words, rules) if end <= taken]
    names = {end - 1 for end, _ in levels}  # where a word of the name stands
    anywhere = frozenset[str]().union(*(options.anywhere for _, options in levels))
    i = 1
    while i < len(words):
        text = words[i].text or words[i].begins
        front = i < taken
        options = next(options for end, options in levels if end <= i)
        option = "" if i in names else _option_of(text, anywhere | options.context if front else anywhere)
        length = 1
        if option:
            length = 2 if option == text and option not in options.flags else 1
            found.append(_Choice(option, tuple(words[i : i + length]), front))
        elif front and i not in names:
            length = _skipped(words, i, options) or 1
        elif not front:
            left.append(words[i])
        i += length
    return found, left


def _option_of(text: str, options: Collection[str]) -> str:
    """Which of `options` a word is or begins with: -n, -nprod, --namespace=prod; "" for none."""
    name = text.partition("=")[0]
    short = text[:2] if text[:1] == "-" != text[1:2] else ""
    return next((option for option in (text, name, short) if option in options), "")


def _by_same_program(verify: str, program: Word, rules: Rules) -> str:
    """`tofu state list` where `tofu`, which has the rules of terraform, was called."""
    name = program_name(program.text) or ""
    like = rules.likes.get(name, "")
    return f"{name}{verify.removeprefix(like)}" if like and f"{verify} ".startswith(f"{like} ") else verify


def _apart(option: str, texts: list[str]) -> list[str]:
    """An option and its value: -nprod is -n prod."""
    joined = len(option) == 2 and texts[0] != option
    return [option, texts[0].removeprefix(option).removeprefix("=")] if joined else texts


def _with_choices(verify: str, choices: Sequence[_Choice], rules: Rules) -> str:
    """A command that verifies with the choices of the call that it is for; where it cannot have one, it says so."""
    words = [Word(text, text) for text in shlex.split(verify)]
    levels = command_levels(words, rules)
    placed: list[tuple[int, list[str]]] = []
    for choice in choices:
        texts = _apart(choice.option, [word.text or "" for word in choice.words])
        takes = (
            end
            for name, end in levels
            if (options := rules.options.get(name)) is not None
            and choice.option in (options.context | options.anywhere if choice.front else options.anywhere)
        )
        end = next(takes, 0)
        if not end or "" in texts or not all(_PLAIN.fullmatch(text) for text in texts):
            return f"{verify}{AWAY}: it ran with {choice.option})"
        placed.append((end if choice.front else len(words), texts))
    done: list[str] = []
    for n in range(len(words) + 1):
        done += [text for end, texts in placed if end == n for text in texts]
        done += [word.text or "" for word in words[n : n + 1]]
    return shlex.join(done) if placed else verify


def _explained(rule: Command, words: Sequence[Word], taken: int, rules: Rules) -> Classified:
    """The rule, its sentences filled with the words of a call."""
    choices, left = _choices(words, taken, rules)
    texts = [r.word.text for r in _split(rule, left) if r.kind != "option"]
    known = [t for t in texts if t is not None and _PLAIN.fullmatch(t) and not t.startswith("-")]
    values = {"operands": shlex.join(known), "refs": shlex.join([*known[:1], *_refs_there(known[1:])])}
    if known:
        values |= {"first": shlex.quote(known[0]), "last": shlex.quote(known[-1])}

    def filled(sentence: str, instead: str) -> str:
        asked = set(_PLACES.findall(sentence))
        if asked and (len(known) < len(texts) or not asked <= values.keys()):
            return instead
        return _PLACES.sub(lambda m: values[m[1]], sentence).strip()

    def shown(text: str, instead: str) -> str:
        return text if len(text) <= _MAX_VERIFY and redact(text) == text else instead

    verify = _by_same_program(filled(rule.verify, GENERAL_VERIFY), words[0], rules)
    if verify.split(" ", 1)[0] in rules.begins:
        verify = _with_choices(verify, choices, rules)
    return Classified(
        rule.cls,
        rule.rule,
        shown(filled(rule.why, instead := "may change something"), instead),
        shown(verify, GENERAL_VERIFY),
        shown(filled(rule.ambiguous, ""), ""),
        looks=rule.looks,
        done_if=shown(filled(rule.done_if, ""), ""),
    )


def _classified(rule: Command) -> Classified:
    return Classified(rule.cls, rule.rule, rule.why, rule.verify, rule.ambiguous, looks=rule.looks)
