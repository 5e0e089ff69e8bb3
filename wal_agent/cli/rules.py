"""`wal-agent rules`: what wal-agent takes a command or a tool call for, and by which rule. Needs no bucket."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self

import msgspec
import typer
from msgspec.structs import replace

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.options import AsJson, require_subcommand
from wal_agent.errors import ConfigError, UsageError
from wal_agent.redact import redact
from wal_agent.text import answer, plural

if TYPE_CHECKING:
    from wal_agent.calls.rules.table import Classified, Rules

MAX_LINE = 1024 * 1024  # bytes of one line of a batch

app = typer.Typer(
    help="Show which rule classifies a command or a tool call; check this project's own rules.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def top(context: typer.Context) -> None:
    require_subcommand(context)


@app.command("check")
def check(
    command: Annotated[
        str | None, typer.Argument(help="A shell command, quoted as one word; with --tool: the tool's input as JSON.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", help="Check a call of this tool instead.", metavar="NAME")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            help='JSON Lines, "-" for stdin: {"cmd": "..."} or {"tool": "...", "input": {...}}. Prints a JSON object'
            " for each line on stdout.",
            metavar="FILE",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how a command or a tool call is classified.

    It shows the rule, the reason, how to verify and what to do in doubt. The rules of the project in this folder come
    before the built-in ones. Nothing is run.

    The exit code is 64 if a line of a batch cannot be read.
    """
    from wal_agent.recovery.project_rules import shell_call

    if (batch is not None) == (command is not None or tool is not None):
        raise UsageError("Name one command, or one tool with its input, or a batch.", "See: wal-agent rules check -h")
    if batch is not None:
        raise typer.Exit(_batch(batch))
    builtin, ruled = _rules()
    if tool is None:
        name, input = shell_call(command or "", builtin)
    else:
        name, input = tool, (command or "{}").encode("utf-8", "surrogateescape")
        _check_input(input)
    found = _classify(name, input, ruled)
    if json:
        answer_json(_shown(found))
    else:
        _show(found, _classify(name, input, builtin))


@app.command("lint")
def lint(
    builtin: Annotated[bool, typer.Option("--builtin", help="Check the rules that wal-agent ships instead.")] = False,
    examples: Annotated[
        str | None,
        typer.Option(
            "--examples",
            help='With --builtin: JSON Lines of commands and the class that they must have: {"cmd": "...",'
            ' "class": "..."}.',
            metavar="FILE",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check this project's own rules.

    They are in wal-agent.toml, in tables in GEMINI.md, CLAUDE.md and AGENTS.md, and in the Recovery sections of
    skills and tool docs. Each rule that cannot be read, or does not do what it says, is named with its place.

    Exit code 78 when something could not be read; warnings alone are 0. With --builtin: 78 for each kind of problem.
    """

    if examples is not None and not builtin:
        raise UsageError("--examples is for --builtin.", "See: wal-agent rules lint -h")
    raise typer.Exit(_lint_builtin(examples, json) if builtin else _lint_project(json))


def _lint_builtin(examples: str | None, json: bool) -> int:
    from wal_agent.calls.rules.table import load_rules, read_texts
    from wal_agent.calls.rules_lint import check_examples, lint_builtin

    texts = read_texts()
    problems = lint_builtin(texts)
    if examples is not None and not problems:
        try:
            with open(examples, "rb") as file:  # noqa: PTH123
                problems = check_examples(file, load_rules())
        except OSError as error:
            raise UsageError(f"{examples} cannot be read: {error.strerror}.") from None
    if json:
        answer_json(RulesLint(tuple(problems), (), len(texts)))
        return ConfigError.exit_code if problems else 0
    answer(problems)
    answer([f"{plural(len(texts), 'file')} of built-in rules, {plural(len(problems), 'problem')}."])
    return ConfigError.exit_code if problems else 0


def _lint_project(json: bool) -> int:
    from collections import Counter

    from wal_agent.calls.rules.table import load_rules
    from wal_agent.config import FILE
    from wal_agent.recovery.project_rules import MAX_RULES, load_markdown_rules, read_toml_rules
    from wal_agent.recovery.project_rules import lint_rules as warnings

    workspace = Path.cwd().resolve()
    problems: list[str] = []
    try:
        declared = read_toml_rules(workspace)
    except ConfigError as error:
        declared = ()
        problems.append(f"{FILE}: {error}")
    more = load_markdown_rules(workspace, MAX_RULES - len(declared))
    problems += map(str, more.problems)
    rules = (*declared, *more.rules)
    warned = warnings(rules, load_rules())
    if json:
        answer_json(RulesLint(tuple(map(redact, problems)), tuple(redact(str(w)) for w in warned), len(rules)))
        return ConfigError.exit_code if problems else 0
    answer(problems)
    answer([str(replace(w, what=f"warning: {w.what}")) for w in warned])
    files = Counter(rule.source for rule in rules)
    each = ", ".join(f"{n} of {name}" for name, n in files.items())
    answer([f"{plural(len(rules), 'rule')} of this project in force{f' ({each})' if each else ''}."])
    return ConfigError.exit_code if problems else 0


# ---- one call -----------------------------------------------------------------------------------------------------


def _rules() -> tuple[Rules, Rules]:
    """(the built-in rules, those with the project's in front). ConfigError for a wrong wal-agent.toml."""
    from wal_agent.recovery.project_rules import load_all

    rules = load_all(Path.cwd().resolve())
    return rules.ours, rules


def _check_input(input: bytes) -> None:
    from wal_agent.calls.call import read_input

    if read_input(input) is None:
        raise UsageError(
            "The input of a tool is one JSON object.", """For example: --tool write_file '{"file_path": "x"}'"""
        )


def _classify(tool: str, input: bytes, rules: Rules) -> Classified:
    from wal_agent.calls.call import ReadCall
    from wal_agent.calls.classify import classify

    return classify(ReadCall(tool, input), rules)


class Ruled(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may change, and by whose rule; see docs/RECOVERY.md."""

    cls: str = msgspec.field(name="class")
    rule: str
    why: str
    verify: str
    done_if: str
    ambiguous: str
    source: str

    @classmethod
    def of(cls, found: Classified, **more: Any) -> Self:
        return cls(
            cls=found.cls,
            rule=found.rule,
            why=found.why,
            verify=found.verify_there,
            done_if=found.done_if,
            ambiguous=found.ambiguous,
            source=found.source,
            **more,
        )


class RulesCheck(Ruled, JsonAnswer, frozen=True, kw_only=True):
    """`wal-agent rules check`, and each line of a batch. `project`: what a rule of the project says; `also`: the other
    commands of the text that may change something."""

    project: Ruled | None
    also: tuple[Ruled, ...]


class RulesCheckError(JsonAnswer, frozen=True):
    """A line of a batch that cannot be read."""

    error: str


class RulesLint(JsonAnswer, frozen=True):
    """`wal-agent rules lint`. `rules`: in force; with --builtin: files of rules. `problems`: what could not be read."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    rules: int


def _shown(found: Classified) -> RulesCheck:
    project = None if found.project is None else Ruled.of(found.project)
    return RulesCheck.of(found, project=project, also=tuple(map(Ruled.of, found.also)))


def _show(found: Classified, builtin: Classified) -> None:
    from wal_agent.calls.quote import safe
    from wal_agent.calls.rules.match import GENERAL_VERIFY
    from wal_agent.calls.rules.table import OURS

    if found.source == OURS:
        head = f"{found.cls}, by rule {found.rule}"
        rows = [("why", f"it {found.why}")]
    else:
        head = f'{found.cls}, by this project\'s rule "{safe(found.rule)}" ({safe(found.source)})'
        rows = [("why", found.why)]
    mine = found.project
    rows += [
        ("verify", found.verify_there if mine is None or not mine.verify or found.verify != GENERAL_VERIFY else "")
    ]
    rows.append(("done if", found.done_if.replace("{sent}", "it lists the commit that was to be sent")))
    rows += [("verify", part.verify_there) for part in found.also]
    if mine is not None:
        rows += [("verify", mine.verify), ("done if", mine.done_if)]
    rows.append(("in doubt", found.ambiguous))
    rows += [("in doubt", part.ambiguous) for part in found.also]
    if mine is not None:
        rows += [("in doubt", mine.ambiguous)]
        if mine.cls != found.cls:
            milder = f'rule "{mine.rule}" ({mine.source}) says {mine.cls}; a project can only make a class worse'
            rows += [("project", milder)]
    if found.cls != builtin.cls:
        rows.append(("built in", f"{builtin.cls}, by rule {builtin.rule}: it {builtin.why}"))
    answer([head, *(f"  {name:<10} {safe(text)}" for name, text in rows if text)])


# ---- many ---------------------------------------------------------------------------------------------------------


def _batch(name: str) -> int:
    """Answers on stdout, one line for each line of the file; 64 if one of them was an error."""

    _builtin, ruled = _rules()
    code = 0
    try:
        with _opened(name) as file:
            for line in _lines(file):
                try:
                    answer_json(_shown(_classify(*_call(line, ruled), ruled)))
                except ValueError as error:
                    answer_json(RulesCheckError(str(error)))
                    code = UsageError.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None
    return code


def _opened(name: str) -> BinaryIO:
    return open(sys.stdin.fileno(), "rb", closefd=False) if name == "-" else open(name, "rb")  # noqa: PTH123


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends; of one that is too long, just enough to say so."""
    while line := file.readline(MAX_LINE + 1):
        cut = line
        while len(cut) > MAX_LINE and not cut.endswith(b"\n"):
            cut = file.readline(MAX_LINE + 1)
        yield line


def _call(line: bytes, rules: Rules) -> tuple[str, bytes]:
    """(tool, input) of a line of a batch. ValueError says what is wrong with it."""
    from wal_agent.calls.call import read_input
    from wal_agent.recovery.project_rules import shell_call

    if len(line) > MAX_LINE:
        raise ValueError(f"the line is longer than {MAX_LINE >> 20} MiB")
    match read_input(line):
        case {"cmd": str(command), **rest} if not rest:
            return shell_call(command, rules)
        case {"tool": str(tool), "input": dict(input), **rest} if not rest:
            return tool, json.dumps(input).encode()
        case None:
            raise ValueError("the line is not one JSON object, or names a key twice")
    raise ValueError('the line is neither {"cmd": "..."} nor {"tool": "...", "input": {...}}')
