"""What to do next about a call, by its class and what became of it. `{verify}`: how, behind a colon."""

from __future__ import annotations

from collections.abc import Mapping

from wal_agent.records import Class, Finding

ASK = " If that leaves doubt, stop and ask the operator."
_REPEAT = "Repeat it if you still need its result."
_CHANGES: Mapping[Finding, str] = {
    "completed": "Do not run it again; continue after it.",
    "not_started": "It did not happen. Run it again if it is still wanted.",
    "partial": (
        "It did part of its work. First find out what is done{verify}. Do only the rest, or stop and ask the operator."
    ),
    "unknown": f"First find out whether it happened{{verify}}. Only if it did not, run it again.{ASK}",
}
NEXT: Mapping[Class, Mapping[Finding, str]] = {
    "read_only": {
        "completed": "Nothing to do; repeat it if you need its result.",
        "not_started": _REPEAT,
        "partial": _REPEAT,
        "unknown": _REPEAT,
    },
    "idempotent": {
        "completed": _CHANGES["completed"],
        "not_started": "Run it again if it is still wanted.",
        "partial": "It did part of its work. First find out what is done{verify}. Then apply it again if needed.",
        "unknown": "First find out whether it happened{verify}. Then apply it again if needed.",
    },
    "mutation": _CHANGES,
    "unknown": _CHANGES,
}


def fill_verify(text: str, how: str) -> str:
    """`how`: a command in backticks, or a sentence; "" for nothing to look at."""
    return text.replace("{verify}", f": {'run ' if how.startswith('`') else ''}{how}" if how else "")


def project_verifies(builtin: str, theirs: str) -> str:
    return f"{builtin}; this project's rule says: {theirs}"


def with_doubt(text: str, doubt: str) -> str:
    """`doubt`: a sentence of a built-in rule on what leaves doubt."""
    return f"{text.removesuffix(ASK)} {doubt}" + (ASK if text.endswith(ASK) else "")


def project_doubts(text: str, doubt: str) -> str:
    return f"{text} In doubt, this project's rule says: {doubt}."


def project_calls_it(text: str, rule: str, source: str, cls: Class) -> str:
    """Of a rule of the project whose class is milder."""
    return f"{text} This project's rule {rule} in {source} calls it {cls}, which does not replace this step."
