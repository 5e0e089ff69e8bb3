"""Find an agent's program, read what the user gave it (arguments and settings files), and classify why it gave up.

- The program: WAL_AGENT_<NAME>, else PATH; its version without a start of it, where possible.
- Node's heap: an agent of Node.js that is started as one process skips the heap that it would give itself, and a long
  session would end at V8's default limit. wal-agent passes the same argument to node (I6).
- Arguments: split as the agent's own parser splits them. Each agent has a table, taken from its `--help`. What the
  agent itself would refuse is passed on for it to refuse.
- Settings files: lowest first, JSON with comments.
- The last error that an agent wrote to stderr: its cause, and when to retry. The text is foreign: an agent's own
  sentences, or those of its model's provider.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import psutil

from wal_agent.agents.base import Cli, Command, Env, ExitCause
from wal_agent.errors import ConfigError
from wal_agent.limits import exhausted
from wal_agent.safefs import open_plain, real_path
from wal_agent.text import quote_word

ASKING = 30.0  # seconds for `--version`
_VERSION = re.compile(r"\d+\.\d+\.\d+[\w.+-]*")

_HEAP_FLAG = "--max-old-space-size"
_LIMIT = 1 << 22  # bytes of a settings file
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\Z))|//[^\n\r]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

_AFTER = re.compile(
    r"(?:retry|again|retry after) (?:in |after )?(?=[\d.])"
    r"(?:(\d{1,4}) ?d(?:ays?)?)? ?(?:(\d{1,4}) ?h(?:ours?)?)? ?(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?![a-z]))? ?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s(?:ec(?:ond)?s?)?))?",
    re.IGNORECASE,
)
_AT = re.compile(
    r"(?:again at|resets(?: at)?) (?:([A-Z][a-z]{2}) (\d{1,2})(?:st|nd|rd|th)?,? (?:(\d{4}),? )?)?"
    r"(\d{1,2})(?::(\d\d))? ?([ap]m)\b(?: \(([A-Za-z_+/-]{1,40})\))?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

TOO_LONG = ExitCause("context", "the conversation is too long for the model")


class Broken(msgspec.Struct, frozen=True):
    """Versions that cannot be used, and why, in one sentence: those before `below`, or from `since` on."""

    why: str
    below: str = ""
    since: str = ""

    def has(self, version: str) -> bool:
        number = _version_number(version)
        if self.below:
            return number < _version_number(self.below)
        return number >= _version_number(self.since)

    def hint(self, package: str) -> str:
        if self.below:
            return f"Install {self.below} or later: npm install -g {package}"
        return f"Install one before {self.since}: npm install -g '{package}@<{self.since}'"


class Program(msgspec.Struct, frozen=True):
    """`package`: on npm. `successors`: packages that bring a later program under this name."""

    name: str
    package: str
    broken: tuple[Broken, ...] = ()
    successors: tuple[str, ...] = ()

    def locate(self, env: Env) -> Cli:
        """Find it. ConfigError when it is missing, does not start, or is a version that cannot be used."""
        variable = f"WAL_AGENT_{self.name.upper().replace('-', '_')}"
        wanted = env.get(variable) or self.name
        folders = env.get("PATH", os.defpath)
        found = shutil.which(wanted, path=_absolute(folders))
        if found is None and not env.get(variable) and (there := shutil.which(wanted, path=folders)):
            raise ConfigError(
                f"{self.name} is on PATH only as {quote_word(there)}: a relative folder, which any project can fill.",
                f"Name the one that you mean: {variable}=/absolute/path/of/{self.name}",
            )
        if found is None and env.get(variable):
            raise ConfigError(
                f"{variable} names {wanted}, and there is no such program.",
                f"Correct the variable, or unset it to use {self.name} from PATH.",
            )
        if found is None:
            install = f"npm install -g {self.package}" if self.package else f"export {variable}=/absolute/path"
            raise ConfigError(f"{wanted} was not found on PATH.", f"Install it: {install}")
        path = Path(found)
        cli = Cli(path.absolute(), self._package_version(path) or _asked_version(path, env))
        for broken in self.broken:
            if cli.version and broken.has(cli.version):
                raise ConfigError(f"{self.name} {cli.version} cannot be used: {broken.why}", broken.hint(self.package))
        return cli

    def _package_version(self, path: Path) -> str:
        for folder in real_path(path).parents[:4]:
            try:
                package = json.loads((folder / "package.json").read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(package, dict) and package.get("name") in (self.package, *self.successors):
                return str(package.get("version", ""))
        return ""


def served_by(adapter: Program, variable: str, argv: Sequence[str], env: Env, folder: Path) -> Command:
    """Return an ACP server of another maker, which starts the program that the variable names, with its own arguments:
    a script in `folder` that puts `argv` in front of them. ConfigError."""
    script = folder / f"{adapter.name}-starts"
    try:
        script.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        script.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"{script} could not be written: {error.strerror or error}.") from error
    return Command((str(adapter.locate(env).path),), {variable: str(script)})


def _absolute(folders: str) -> str:
    """Those of PATH that are the same in every project: a clone must not bring the agent."""
    return os.pathsep.join(folder for folder in folders.split(os.pathsep) if folder.startswith("/"))


def _asked_version(path: Path, env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], env=dict(env), capture_output=True, text=True, timeout=ASKING, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise exhausted(e) or ConfigError(f"{path} does not start: {e}.") from e
    found = _VERSION.search(done.stdout) or _VERSION.search(done.stderr)  # pi prints it there without a terminal
    return found[0].rstrip(".") if found else ""  # some end a sentence with it


def _version_number(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("-")[0])[:3])


def node_command(program: Path, env: Env) -> tuple[str, ...]:
    """Return the words to put before `program`: node, and half of the memory as its heap. None where it is no node
    script, or where NODE_OPTIONS set a heap."""
    if _HEAP_FLAG in env.get("NODE_OPTIONS", "") or not _is_node_script(program):
        return ()
    return ("node", f"{_HEAP_FLAG}={psutil.virtual_memory().total // 2 // (1 << 20)}")


def _is_node_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.readline(200).rstrip() == b"#!/usr/bin/env node"
    except OSError:
        return False


Kind = Literal["flag", "value", "maybe", "many"]
"""maybe: takes the next word unless that looks like an option; many: takes all words up to the next option."""


class Arg(msgspec.Struct, frozen=True):
    """One option with its value, or a positional word (`name` is empty). `words`: its spelling on the command line."""

    name: str
    value: str
    words: tuple[str, ...]


class Syntax(msgspec.Struct, frozen=True):
    """`kinds`: the long options that are known (others are flags). `short`: a letter's long name. `yargs`: it also
    takes --someOption for --some-option, and `true` or `false` behind a flag; else (commander, clap) a letter's value
    may follow it directly, and an option that needs a value takes the next word whatever it looks like."""

    kinds: Mapping[str, Kind]
    short: Mapping[str, str] = msgspec.field(default_factory=dict)
    yargs: bool = False

    @classmethod
    def of(cls, short: str, yargs: bool = False, **kinds: str) -> Syntax:
        """Make one from words: `short` of "h=help v=version", `value`, `maybe`, `many` and `flag` of long options."""
        known = {name: cast(Kind, kind) for kind, names in kinds.items() for name in names.split()}
        return cls(known, dict(each.split("=") for each in short.split()), yargs)

    def read(self, args: Sequence[str]) -> list[Arg]:
        out: list[Arg] = []
        at = 0
        while at < len(args):
            word = args[at]
            at += 1
            if word == "--":
                out += [Arg("", rest, ("--", rest)) for rest in args[at:]]
                break
            if word.startswith("--"):
                long, eq, value = word.partition("=")
                name = self._name(long[2:])
            elif len(word) > 1 and word[0] == "-" and word[1].isalpha():
                alone, letter, eq, value = self._letters(word)
                out += [Arg(self.short.get(c, c), "", ("-" + c,)) for c in alone]
                name = self.short.get(letter, letter)
                word = f"-{letter}{eq}{value}"
            else:
                out.append(Arg("", word, (word,)))
                continue
            taken = () if eq or value else self._taken(name, args[at:])
            at += len(taken)
            out.append(Arg(name, value if eq or value else " ".join(taken), (word, *taken)))
        return out

    def _name(self, long: str) -> str:
        if not self.yargs or long in self.kinds:
            return long
        return re.sub(r"(?<=[a-z])([A-Z])", lambda m: "-" + m[1].lower(), long)

    def _letters(self, word: str) -> tuple[str, str, str, str]:
        """Flags alone, the last letter, "=" or nothing, the value that is attached to it."""
        letters, eq, value = word[1:].partition("=")
        if not self.yargs:
            for i, c in enumerate(letters):
                if self.kinds.get(self.short.get(c, c), "flag") != "flag":
                    return letters[:i], c, eq if i + 1 == len(letters) else "", word[2 + i :].removeprefix("=")
        return letters[:-1], letters[-1], eq, value

    def _taken(self, name: str, rest: Sequence[str]) -> tuple[str, ...]:
        kind = self.kinds.get(name, "flag")
        if not rest:
            return ()
        if kind == "flag":
            return (rest[0],) if self.yargs and rest[0] in ("true", "false") else ()
        if kind == "value" and not self.yargs:
            return (rest[0],)
        if kind != "many":
            return () if _is_option(rest[0]) else (rest[0],)
        until = next((i for i, word in enumerate(rest) if _is_option(word)), len(rest))
        return tuple(rest[:until])


def _is_option(word: str) -> bool:
    return re.match(r"-[^0-9]", word) is not None


def to_words(args: Iterable[Arg]) -> list[str]:
    """Return the command line again, with one `--` before what followed it."""
    plain: list[str] = []
    behind: list[str] = []
    for arg in args:
        if arg.words[0] == "--":
            behind.append(arg.words[1])
        else:
            plain += arg.words
    return [*plain, "--", *behind] if behind else plain


def last_value(args: Iterable[Arg], name: str) -> str | None:
    """Return the value of an option as given last, None when it is not given."""
    found = [arg.value for arg in args if arg.name == name]
    return found[-1] if found else None


def takes_stream(args: Iterable[Arg]) -> bool:
    """Return whether another program sends the prompts on stdin, as Claude Code's SDK does."""
    return last_value(args, "input-format") == "stream-json"


def is_given(args: Iterable[Arg], name: str) -> bool:
    return last_value(args, name) not in (None, "false")


def starts_no_session(given: Sequence[Arg], commands: Collection[str], flags: Iterable[str]) -> bool:
    """Return whether the first word is one of these subcommands, or one of these options is given."""
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in commands
    return command or any(is_given(given, name) for name in flags)


def first_prompt(given: Sequence[Arg], *names: str) -> str | None:
    """Return the first of these options' values that is not empty, else the positional words, else None."""
    words = " ".join(arg.value for arg in given if not arg.name)
    return next(filter(None, (*(last_value(given, name) for name in names), words)), None)


def read_object(path: Path, parse: Callable[[bytes], Any] = json.loads) -> dict[str, Any] | None:
    """Read a settings file. None where it is absent, or damaged: then the agent itself reports it or ignores it."""
    try:
        with open_plain(path, follow=True) as f:
            values = parse(f.read(_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def without_comments(text: str) -> str:
    return _COMMENT.sub(lambda m: m[1] or " ", text)


class Layer(msgspec.Struct, frozen=True):
    """One settings file that exists, with the name that a user knows it by."""

    shown: str
    values: dict[str, Any]


def read_layer(shown: str, path: Path) -> Layer | None:
    values = read_object(path, lambda data: json.loads(without_comments(data.decode())))
    return None if values is None else Layer(shown, values)


def read_layers(*places: tuple[str, Path]) -> list[Layer]:
    return [each for place in places if (each := read_layer(*place)) is not None]


def effective_setting(layers: Sequence[Layer], *keys: str) -> tuple[Layer, Any] | None:
    """Return the last file that has this key, and its value. A group that is no object has no keys at all."""
    found: tuple[Layer, Any] | None = None
    *groups, key = keys
    for each in layers:
        values: Any = each.values
        for group in groups:
            if group not in values:
                break
            values = values[group]
            if not isinstance(values, dict):
                found = (each, None)
                break
        else:
            if key in values:
                found = (each, values[key])
    return found


def retry_after_seconds(text: str, now: float) -> float:
    """Return seconds from `now` (since 1970), 0 for none: of "retry in 34.07s", "try again in 1h 5m", "try again at
    2:17 PM", "resets Nov 24, 3pm (UTC)"; the last one counts. A time of day is in this machine's zone, as the agent's
    is."""
    found = [(m.start(), _span(m)) for m in _AFTER.finditer(text)]
    found += [(m.start(), _moment(m, now)) for m in _AT.finditer(text)]
    return next((seconds for _, seconds in sorted(found, reverse=True) if seconds > 0), 0.0)


def _span(m: re.Match[str]) -> float:
    days, hours, minutes, number, unit = m.groups()
    seconds = float(number or 0) / (1000 if (unit or "").lower() == "ms" else 1)
    return int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds


def _moment(m: re.Match[str], now: float) -> float:
    month, day, year, hour, minute, half, zone = m.groups()
    at = datetime.fromtimestamp(now, _zone(zone))
    try:
        then = at.replace(
            hour=int(hour) % 12 + (12 if half.lower() == "pm" else 0), minute=int(minute or 0), second=0, microsecond=0
        )
        if month is not None:
            then = then.replace(
                month=_MONTHS.index(month.lower()) + 1, day=int(day), year=int(year) if year else at.year
            )
    except ValueError:
        return 0.0
    if month is None and then <= at:
        then += timedelta(days=1)
    return max(0.0, then.timestamp() - now)


def _zone(name: str | None) -> tzinfo | None:
    """Return a named zone; None: this machine's."""
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def cause_from_last_error(
    stderr: bytes,
    now: float,
    *,
    last: re.Pattern[bytes],
    waits: re.Pattern[str] | None = None,
    too_long: re.Pattern[str] | None = None,
) -> ExitCause | None:
    """Return the cause that the last error names, or None. `last`: a pattern of an error, whose text is its first
    group; `too_long`: of a text that means a too long conversation; `waits`: of one that means that the model will
    serve again later (None: any)."""
    errors = last.findall(stderr)
    if not errors:
        return None
    why = errors[-1].decode("utf-8", "replace").strip()
    if too_long is not None and too_long.search(why):
        return TOO_LONG
    return ExitCause("quota", why, retry_after_seconds(why, now)) if waits is None or waits.search(why) else None
