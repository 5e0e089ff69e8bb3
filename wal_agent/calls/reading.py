"""Find what a tool call runs (`Runs`): each command of its shell text, wherever it stands in it, with its
program, words and folder. Pure.

What only says how is left out: wrappers, variables in front, redirections of a command that changes something by
itself, an interpreter in front of a script. Where a command runs what its words do not show (a program that is not
known, text from a file), what it may run is read as well, as a guess.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from wal_agent.calls.argv import program_name
from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import FOLDERS, builtin_effect, classify_words, redirect_effects
from wal_agent.calls.rules.match import command_levels
from wal_agent.calls.rules.project import interpreted, is_interpreter
from wal_agent.calls.rules.table import Rules
from wal_agent.calls.shell.syntax import Simple, Word, split_names
from wal_agent.calls.shell.wrappers import InnerRun, is_wrapper, unwrap
from wal_agent.records import CHANGING
from wal_agent.wal.state import State

MAX_COMMANDS = 200  # of one call, guesses with them
MAX_TEXTS = 40  # texts in each other, or beside each other
MAX_DEPTH = 8
MAX_WORDS = 32  # of a command whose last words may be another one
MAX_GUESSED = 4  # words of it that may be shell text
ANYWHERE = "*"  # a folder that is not known
_TEXTS = ("command", "cmd")  # what tools that are not known call their shell text
_FOLDER_OPTION = ("git", "make")  # -C
_ANSWERS = ("", "y", "yes")
_OWN = frozenset(("checkpoint", "step", "state", "recall", "settle", "mark", "inbox", "pause"))
_PRINTS = frozenset(("printf", "echo", "true", ":"))
# Words for people and limits of time of other tools than shells, whose rules say which these are.
TALK = split_names(
    "description explanation justification timeout timeout_ms idle_timeout_ms delay_ms wait_for_previous "
    "run_in_background is_background"
)
_PWD = re.compile(r"\$PWD\b|\$\{PWD\}|\$\(pwd\)|`pwd`")
_BEHIND = re.compile(r"(?<![&<>|])&(?![&>])")  # perhaps in quotes
_SERVER = re.compile(r"mcp_{1,2}")
_RUNNERS = (["uv", "run"], ["poetry", "run"], ["pipenv", "run"], ["bundle", "exec"], ["npx"])
_MOVES = frozenset({"-C", "-D", "-R", "--chdir"})  # of wrappers: another folder
_PYTHON = Word("python", "python")
_TAKES_TEXT = frozenset({"at", "batch", "tmux", "screen", "script", "expect"})  # they run what they are given as text


class Command(msgspec.Struct, frozen=True):
    """One command. `program`: a name, the path of a script ("*/x" where its folder is not known), "" for any.
    `words`: those behind it. `folder`: where it runs; `away`: on which host, in which container. `input`: what it
    reads, as far as the text shows. `effects`: redirections, where only these change something. `code`: what an
    interpreter is given. `changes`: it may change something. `guess`: another command may run it."""

    program: str
    words: tuple[Word, ...] = ()
    folder: str = ""
    away: str = ""
    input: str | None = None
    effects: tuple[str, ...] = ()
    code: str = ""
    changes: bool = False
    guess: bool = False


class Runs(msgspec.Struct, frozen=True):
    """What a call runs, for comparing it. `fields`: its input in one spelling, but for words for people, limits of
    time, the shell text and its folder; "" for a tool that is known to run shell text (`shell`), where others change
    only how it runs. `text`: its shell text. `commands`: those of the text; None for a tool that runs none."""

    tool: str
    fields: str
    folder: str = ""
    text: str = ""
    commands: tuple[Command, ...] | None = None
    shell: bool = False


_FIRST = Command("")

Words = tuple[Word, ...]


def read_calls(state: State, inputs: Mapping[int, bytes]) -> dict[int, ReadCall]:
    """The calls of a job that have an input in `inputs`, by their numbers."""
    ended = [*(e.intent for e in (*state.unsettled, *state.unheld)), *(c.intent for c in state.unlogged)]
    tools = {intent.call: intent.tool for intent in [*(o.intent for o in state.open), *ended]}
    return {call: ReadCall(tools[call], input) for call, input in inputs.items() if call in tools}


def find_runs(call: ReadCall, workspace: str, rules: Rules) -> Runs:
    """Find what a call runs, by the built-in rules. `workspace`: where the agent was at it, if it did not say."""
    tool, fields, folder = call.tool, call.fields, call.folder or workspace
    if fields is None:
        return Runs(tool_name(tool), call.input.decode("utf-8", "replace"), folder=folder)
    shell = rules.shells.get(tool)
    field = shell.field if shell is not None else "" if tool in rules.files else _text_field(fields)
    said = {k: _spelled(v) for k, v in fields.items() if k not in TALK and v not in (None, False, "")}
    command = said.pop(field, None)
    if command is None:
        return Runs(tool_name(tool), _dumped(said), folder=folder)
    here = _join(folder, next((v for name in FOLDERS if isinstance(v := said.pop(name, None), str)), ""))
    reader = _Reader(call, rules)
    if isinstance(command, str):
        text = str(fields[field])
        reader.text(text, here)
    elif isinstance(command, list) and command and all(isinstance(w, str) for w in command):
        text = " ".join(command)
        reader.command(Simple(tuple(Word(w, w) for w in command)), here)
    else:
        return Runs(tool_name(tool), _dumped({**said, field: command}), folder=here)
    rest = "" if shell is not None else _dumped(said)
    return Runs(tool_name(tool), rest, here, text, tuple(reader.found), shell is not None)


def shell_commands(call: ReadCall) -> tuple[Simple, ...]:
    """The commands of a call's shell text as they stand in it, whatever the tool; none where it has none that can be
    read."""
    script = call.parse(shell_text(call))
    return script.commands if script is not None else ()


def leaves_behind(call: ReadCall) -> bool:
    """Whether a call's shell text ends while a command of it may run on in the background, as far as it can be read."""
    text = shell_text(call)
    if _BEHIND.search(text) is None:
        return False
    script = call.parse(text)
    return script.leaves if script is not None else True


def only_tells(call: ReadCall) -> bool:
    """Whether a call's shell text does no more than tell wal-agent something, or ask it: a step's command is an effect
    of its own, and the rest stays in the job's log."""
    if b"wal-agent" not in call.input:
        return False
    commands = shell_commands(call)
    for simple in commands:
        words = [word.text or "" for word in simple.words]
        own = words[:1] == ["wal-agent"] and words[1:2] and words[1] in _OWN
        kept = (r for r in simple.redirects if ">" in r.op and r.to is not None)
        if not (own or (words[:1] and words[0] in _PRINTS)) or any(r.to.text != "/dev/null" for r in kept if r.to):
            return False
    return bool(commands)


def shell_text(call: ReadCall) -> str:
    """A call's shell text, whatever the tool; "" where it has none."""
    text = call.known.get(_text_field(call.known))
    return text if isinstance(text, str) else ""


def tool_name(tool: str) -> str:
    """One name for a tool of an MCP server, which each agent spells otherwise: mcp__pay__charge, pay-charge."""
    return re.sub(r"[^a-z0-9]+", "_", _SERVER.sub("", tool, count=1).lower()) if tool else ""


def _text_field(fields: Mapping[str, object]) -> str:
    return next((name for name in _TEXTS if isinstance(fields.get(name), str)), "")


def _spelled(value: object) -> object:
    if isinstance(value, str):
        return " ".join(value.split())
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _dumped(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, sort_keys=True) if fields else ""


class _Reader:
    """Collects the commands of one call. `like`, in its methods: what holds for each command that is found there."""

    def __init__(self, call: ReadCall, rules: Rules) -> None:
        self.found: list[Command] = []
        self._call = call
        self._rules = rules
        self._texts = 0
        self._written: set[str] = set()  # files that the text writes

    def text(self, text: str, folder: str, like: Command = _FIRST, depth: int = 0) -> None:
        """Read shell text that begins in `folder`."""
        self._texts += 1
        script = self._call.parse(_PWD.sub(".", text)) if depth <= MAX_DEPTH and self._texts <= MAX_TEXTS else None
        if script is None:
            self._unknown(like)
            return
        scopes: list[tuple[tuple[int, ...], str]] = [((), folder)]  # the subshells around a command, and where it runs
        for c in script.commands:
            while c.shells[: len(scopes[-1][0])] != scopes[-1][0]:
                scopes.pop()
            here = scopes[-1][1]
            if c.words and c.words[0].text not in script.functions:
                fed = _printed(script.commands[c.fed], here) if c.fed >= 0 else None
                self.command(c, here, replace(like, input=fed), depth)
            self._written |= {_join(here, r.to.text or "") for r in c.redirects if ">" in r.op and r.to is not None}
            moved = _folder_after(c, here)
            scopes = [*scopes[:-1], (c.shells, moved)] if c.shells == scopes[-1][0] else [*scopes, (c.shells, moved)]

    def command(self, c: Simple, folder: str, like: Command = _FIRST, depth: int = 0) -> None:
        """Read a command that runs in `folder`, through its wrappers."""
        if len(self.found) >= MAX_COMMANDS or depth > MAX_DEPTH:
            self._unknown(like)
            return
        like = replace(like, input=_given(c, folder, like.input))
        texts = [w.text for w in c.words]
        if script := _script(c, texts):
            self._script(c.words[:1], script, folder, like)
            return
        for runner in (texts[:2], texts[:1]):
            if runner in _RUNNERS and len(texts) > len(runner):
                rest = c.words[len(runner) :]
                by = (_PYTHON,) if (rest[0].text or "").endswith(".py") else ()
                self.command(replace(c, words=(*by, *rest)), folder, like, depth + 1)
                return
        named = command_levels(c.words, self._rules)
        wraps = bool(named) and (is_wrapper(named[0][0]) or is_wrapper(named[-1][0]))
        runs = unwrap(c, *named[0]) if wraps else None
        if runs is None:
            self._plain(c, folder, like, depth)
        for r in runs or ():
            self._inner(r, c, folder, like, depth + 1)

    def _inner(self, r: InnerRun, c: Simple, folder: str, like: Command, depth: int) -> None:
        """Read what a wrapper runs."""
        if r.own:
            self._plain(replace(c, words=r.own), folder, like, depth)
        front = [w.text or "" for w in c.words[: len(c.words) - len(r.words)]]
        if r.away:
            named = " ".join(w for w in front if not w.startswith("-")) if r.words else r.away
            folder, like = "", replace(like, away=f"{like.away} {named}".strip())
        elif not _MOVES.isdisjoint(w.partition("=")[0] for w in front):
            folder = ANYWHERE
        if r.shell and r.least == "unknown" and r.text is not None:
            self._unknown(like)  # put together from parts
        if r.words:
            self.command(Simple(r.words, redirects=c.redirects, input=r.input), folder, like, depth)
        elif r.text is not None:
            self.text(r.text, folder, like, depth)
        else:
            self._unknown(like)
            self._guess(c.words, folder, like, depth, 1)

    def _plain(self, c: Simple, folder: str, like: Command, depth: int) -> None:
        """Add a command without wrappers."""
        words = c.words
        name = program_name(words[0].text)
        if words[0].text is None:
            self._unknown(like)
        elif name is None:
            self._script((), words, folder, like)
            self._guess(words, folder, like, depth, 2)
        else:
            while name in _FOLDER_OPTION and len(words) > 3 and words[1].text == "-C" and words[2].text:
                words, folder = (words[0], *words[3:]), _join(folder, words[2].text or "")
            found = classify_words(Simple(words, input=c.input), self._call, self._rules)
            changes = found.cls in CHANGING and builtin_effect(words) is None
            effects = () if changes else tuple(_effects(c, folder))
            code = " ".join(w.text or w.source for w in words[1:]) + (like.input or "")
            self._add(
                like,
                name,
                words[1:],
                folder,
                changes=not like.guess and (changes or bool(effects)),
                effects=effects,
                code=code if is_interpreter(name) else "",
            )
            if found.rule == "program" or name in _TAKES_TEXT:
                self._guess(words, folder, like, depth, 2)
                if c.input and name in _TAKES_TEXT:
                    self.text(c.input, folder, replace(like, guess=True), depth + 1)

    def _script(self, by: Words, words: Words, folder: str, like: Command) -> None:
        """Add a script with its words. `by`: what reads it, if that is named. One that only sets up the shell (`source
        env.sh`) changes nothing by itself."""
        path = _join(folder, words[0].text or "")
        sets = len(words) == 1 and bool(by) and by[0].text in ("source", ".")
        lost = path == ANYWHERE
        program = f"*/{posixpath.basename(words[0].text or '')}" if lost else path if "/" in path else f"./{path}"
        self._add(like, program, words[1:], folder, not sets)
        if path in self._written:
            self._unknown(like)

    def _guess(self, words: Words, folder: str, like: Command, depth: int, least: int) -> None:
        """Add what a command may run that is not known: its last words (at least `least`), or a word's text."""
        if like.guess:
            return
        like = replace(like, guess=True)
        for i in range(1, min(len(words), MAX_WORDS) - least + 1):
            if not (words[i].text or "-").startswith("-"):
                self.command(Simple(words[i:]), folder, like, depth + 1)
        for text in [w.text for w in words[1:] if w.text and " " in w.text.strip()][:MAX_GUESSED]:
            self.text(text, folder, like, depth + 1)

    def _unknown(self, like: Command) -> None:
        if not like.guess and not (self.found and not self.found[-1].program):
            self._add(like, "", (), "", True)

    def _add(
        self,
        like: Command,
        program: str,
        words: Words,
        folder: str,
        changes: bool,
        effects: tuple[str, ...] = (),
        code: str = "",
    ) -> None:
        words = tuple(chain.from_iterable(map(_option_and_value, words)))
        self.found.append(
            replace(like, program=program, words=words, folder=folder, changes=changes, effects=effects, code=code)
        )


def _join(folder: str, path: str) -> str:
    if folder == ANYWHERE and not path.startswith("/"):
        return ANYWHERE
    joined = posixpath.normpath(posixpath.join(folder, path))
    return "" if joined == "." else joined


def _folder_after(c: Simple, folder: str) -> str:
    """The folder behind a command."""
    if not c.words or c.words[0].text not in ("cd", "pushd", "popd"):
        return folder
    to = [w for w in c.words[1:] if w.text not in ("--", "-P", "-L", "-e")]
    if len(to) != 1 or not to[0].text or to[0].text.startswith(("-", "+")):
        return ANYWHERE
    return _join(folder, to[0].text)


def _script(c: Simple, texts: list[str | None]) -> Words:
    """The script that an interpreter is given, with its words: as its operand, or as its input (`bash -s x < file`)."""
    if not texts or not is_interpreter(posixpath.basename(texts[0] or "")):
        return ()
    if found := interpreted(texts):
        return c.words[len(c.words) - len(found) :]
    read = [r.to for r in c.redirects if r.op == "<" and r.to is not None and r.to.text not in (None, "/dev/null")]
    given = [w for w in c.words[1:] if not (w.text or "").startswith("-")]
    return (*read, *given) if len(read) == 1 and (not given or "-s" in texts) else ()


def _given(c: Simple, folder: str, fed: str | None) -> str | None:
    """What a command reads, if that is known: its text, the name of a file, or the words of what prints it."""
    text = c.input
    if text is None:
        files = [r.to.text for r in c.redirects if r.op == "<" and r.to is not None and r.to.text]
        text = f"<{_join(folder, files[0])}" if files else fed
    return None if text is None or text.strip().lower() in _ANSWERS else text.strip()


def _printed(c: Simple, folder: str) -> str | None:
    words = [w.text or w.source for w in c.words]
    if words[:1] == ["cat"] and len(words) == 2:
        return f"<{_join(folder, words[1])}"
    return None if words == ["yes"] else f"|{' '.join(words)}"


def _effects(c: Simple, folder: str) -> Iterable[str]:
    """The redirections that change something which cannot be done again."""
    for r in c.redirects:
        if r.to is not None and any(e.cls in CHANGING for e in redirect_effects([r])):
            yield f"{r.op}/{_join(folder, r.to.text) if r.to.text else r.to.source}"


def _option_and_value(word: Word) -> Words:
    """--amount=5 is --amount 5."""
    name, equals, value = (word.text or "").partition("=")
    return (Word(name, name), Word(value, value)) if equals and name.startswith("--") else (word,)
