"""What a tool call may change (DESIGN 7, step 4): pure, from the call's own words and the rules.

A mistake towards `read_only` lets a changing tool start before its intent is safe (I1), so all that is not plainly
known is `unknown`. Read-only calls are logged too: recovery does not rest on this being right.
"""

from __future__ import annotations

import json

from wal_agent.records import Class, Finding
from wal_agent.recovery.rules import Classified, Rules
from wal_agent.recovery.shell import only_reads, plain_words

__all__ = ["Classified", "Rules", "classify", "next_step", "read_input"]

UNREADABLE = Classified("unknown", "unreadable", "has an input that could not be read")
NO_RULE = Classified("unknown", "none", "is not known to wal-agent", "look for what it was to change")


def classify(tool: str, input: bytes, rules: Rules) -> Classified:
    """The class of a call. `input` is the agent's JSON object; anything else makes the call unknown."""
    fields = read_input(input)
    if fields is None:
        return UNREADABLE
    known = rules.tools.get(tool, NO_RULE)
    if tool == rules.shell_tool:
        return _shell(fields, rules) or known
    return known


def next_step(cls: Class, finding: Finding, verify: str, rules: Rules) -> str:
    """What the agent is told to do next about a call in flight."""
    return rules.next[cls][finding].replace("{verify}", f" ({verify})" if verify else "")


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
        raise ValueError("a key stands twice")
    return found


def _shell(fields: dict[str, object], rules: Rules) -> Classified | None:
    command = fields.get(rules.shell_field)
    others = {k for k, v in fields.items() if v not in (None, False)} - rules.shell_ignore - {rules.shell_field}
    if not isinstance(command, str) or others:
        return None  # a field that we do not know (is_background, additional_permissions) may change what is done
    words = plain_words(command)
    if not words:
        return None
    for rule in rules.commands.get(words[0], ()):
        if only_reads(words, rule):
            return Classified("read_only", "shell:" + " ".join(rule.program), rules.shell_why)
    return None
