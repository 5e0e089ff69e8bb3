"""What a tool call may change (RECOVERY.md): pure, from the call's own words and the rules.

A mistake towards `read_only` lets a changing tool start before its intent is safe (I1), so all that is not plainly
known is `unknown`. Read-only calls are logged too: recovery does not rest on this being right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce

from wal_agent.records import Class
from wal_agent.shell import inline_code
from wal_agent.shell.effects import builtin_effect, joint_effect, redirect_effects, variable_effects
from wal_agent.shell.match import GENERAL_VERIFY, command_levels, match_rule, program_name
from wal_agent.shell.project_rules import folder_after, match_command, match_tool
from wal_agent.shell.reader import parse
from wal_agent.shell.rules import OURS, Classified, Rules, Shell
from wal_agent.shell.syntax import Script, Simple, Word
from wal_agent.shell.wrappers import WRAPPERS, InnerRun, unwrap

__all__ = ["AWAY", "Classified", "Rules", "classify", "classify_command", "read_input", "tighten", "worse_class"]

UNREADABLE = Classified("unknown", "unreadable", "has an input that could not be read")
NO_RULE = Classified("unknown", "none", "is not known to wal-agent", GENERAL_VERIFY)
_UNPARSED = Classified("unknown", "shell-unreadable", "is shell text that cannot be read for certain", GENERAL_VERIFY)
_NOTHING = Classified("unknown", "shell-empty", "holds no command", GENERAL_VERIFY)
_TOO_MUCH = Classified("unknown", "shell-long", "holds too many commands to be sure of", GENERAL_VERIFY)
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

AWAY = " (there, not here"  # behind a `verify` that is for where the command ran
_RUNS_CODE = re.compile("python|node")
_BADNESS: Mapping[Class, int] = {"read_only": 0, "idempotent": 1, "unknown": 2, "mutation": 3}
FOLDERS = ("dir_path", "directory", "workdir", "cwd")  # what agents call the folder that a command runs in
_MOST_COMMANDS = 200
_MOST_DEPTH = 8


def classify(tool: str, input: bytes, rules: Rules, explain: bool = True) -> Classified:
    """The class of a call. `input` is the agent's JSON object; anything else makes the call unknown. `explain`: fill
    the sentences of the rule with the words of the call, which takes a look for secrets in them."""
    fields = read_input(input)
    return UNREADABLE if fields is None else _with_project(rules, lambda r: _classify_call(tool, fields, r, explain))


def _classify_call(tool: str, fields: dict[str, object], rules: Rules, explain: bool) -> Classified:
    declared: Classified | None = None
    if rules.project and (rule := match_tool(rules.project, tool, fields)) is not None:
        why = rule.why or "is a tool that the project's own rules name"
        declared = Classified(rule.cls, rule.name, why, rule.verify, rule.ambiguous, rule.source)
    shell = rules.shells.get(tool)
    if shell is None:
        return declared or rules.tools.get(tool, NO_RULE)
    found = _classify_shell(fields, shell, rules, explain)
    # A project's rule for the shell as such is for the commands that it has no rule for.
    return declared if declared is not None and found.source == OURS else found


def classify_command(text: str, rules: Rules, folder: str = "") -> Classified:
    """The class of shell text: that of the worst command in it. `folder`: where it runs, relative to the workspace."""
    return _with_project(rules, lambda r: _Parts(r, folder).whole(text))


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
    return replace(declared, verify=builtin.verify, ambiguous=builtin.ambiguous, project=declared)


def read_input(input: bytes) -> dict[str, object] | None:
    """A call's input as an object with string keys; None when it is not JSON, not an object, or names a key twice."""
    try:
        fields = json.loads(input, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _classify_shell(fields: dict[str, object], shell: Shell, rules: Rules, explain: bool) -> Classified:
    command = fields.get(shell.field)
    folder = next((v for name in FOLDERS if isinstance(v := fields.get(name), str)), "")
    if isinstance(command, str):
        found = _Parts(rules, folder, explain).whole(command)
    elif isinstance(command, list) and command and all(isinstance(w, str) for w in command):
        found = _Parts(rules, folder, explain).words(tuple(Word(w, w) for w in command))
    else:
        return UNREADABLE
    # A field that we do not know (is_background, additional_permissions) may change what is done.
    return worse_of(found, _FIELDS) if shell.strange(fields) else found


def worse_of(one: Classified, other: Classified) -> Classified:
    """The worse of two; the first where they are equally bad."""
    return one if _BADNESS[one.cls] >= _BADNESS[other.cls] else other


def worse_class(one: Class, other: Class) -> Class:
    return max(one, other, key=_BADNESS.__getitem__)


class _Parts:
    """Goes through the commands of a text, and those that they run, and keeps the worst."""

    def __init__(self, rules: Rules, folder: str, explain: bool = True) -> None:
        self._rules = rules
        self._explain = explain
        self._folder = folder  # as far as `cd` shows; only rules of the project ask for it
        self._seen = 0
        self._now = Simple(())  # what is being looked at, with its wrappers
        self._ran: list[Simple] = []  # commands without their wrappers, in their order

    def whole(self, text: str) -> Classified:
        found = self.text(text)
        more = joint_effect(self._ran) if found.cls == "idempotent" else None
        return more or found

    def text(self, text: str, depth: int = 0) -> Classified:
        script = parse(text) if depth <= _MOST_DEPTH else None
        if script is None:
            return _UNPARSED
        found: Classified | None = None
        began = self._folder
        for c in script.commands:
            self._seen += 1
            if self._seen > _MOST_COMMANDS:
                return _TOO_MUCH if found is None else worse_of(found, _TOO_MUCH)
            one = self._simple(c, script, depth)
            found = one if found is None else worse_of(found, one)
            if self._rules.project:
                self._folder = folder_after(self._folder, [w.text for w in c.words])
        self._folder = began
        return found or _NOTHING

    def words(self, words: tuple[Word, ...]) -> Classified:
        """The class of a command that no shell reads."""
        return self._command(Simple(words), None, 0)

    def _simple(self, c: Simple, script: Script, depth: int) -> Classified:
        around, self._now = self._now, c
        if c.redirects:
            self._ran.append(Simple((), redirects=c.redirects))
        found = self._command(c, script, depth) if c.words else _LOOKS if c.redirects else _FUNCTION
        reads = bool(c.words) and c.words[0].text == "read"
        sets = [name for name in c.assigns if not (reads and name == "IFS")]  # how `read` divides its line
        for part in (*variable_effects(sets), *redirect_effects(c.redirects)):
            found = worse_of(found, part)
        self._now = around
        return found

    def _command(self, c: Simple, script: Script | None, depth: int) -> Classified:
        """A command without regard to its redirections. `script`: the text whose functions it can call."""
        first = c.words[0]
        if script is not None and first.text in script.functions:
            return _FUNCTION
        if depth > _MOST_DEPTH:
            return _UNPARSED
        declared = self._declared(c)
        if declared is not None:
            return declared
        if _RUNS_CODE.search(first.text or "") and (code := inline_code.classify_code(c)) is not None:
            return _CODE[code]
        named = command_levels(c.words, self._rules)
        runs = unwrap(c, *named[0]) if named and not WRAPPERS.isdisjoint((named[0][0], named[-1][0])) else None
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
        if program_name(words[0]) is None:
            return _SCRIPT
        return match_rule(words, self._rules, self._explain) or _PROGRAM

    def _inner(self, r: InnerRun, depth: int) -> Classified:
        least = Classified(r.least, "wrapper", r.why or "runs a command that its words do not tell", GENERAL_VERIFY)
        if r.shell:
            found = worse_of(self.text(r.text, depth), least) if r.text is not None else least
            if r.text is None and r.least != "unknown":
                found = worse_of(found, _SCRIPT)
        else:
            found = worse_of(self._command(Simple(r.words, input=r.input), None, depth), least)
        for part in variable_effects(r.sets):
            found = worse_of(found, part)
        if r.away and found.verify:
            found = replace(found, verify=f"{found.verify}{AWAY}: it ran {r.away})")
        return found

    def _declared(self, c: Simple) -> Classified | None:
        """What a rule of the project says of a command."""
        if not self._rules.project:
            return None
        rule = match_command(self._rules.project, [w.text for w in c.words], self._folder)
        if rule is None:
            return None
        why = rule.why or "is a command that the project's own rules name"
        return Classified(rule.cls, rule.name, why, rule.verify, rule.ambiguous, rule.source)
