"""Write wal_agent/redact/key_formats.json from gitleaks' public rule set.

python -m scripts.update_key_formats CLONE

CLONE is a clone of github.com/gitleaks/gitleaks; its config/gitleaks.toml is read at the commit that is checked out or
HEAD of a bare one. A rule is taken where a key begins with fixed characters of its issuer. Go's regular expressions are
translated. All other rules are listed in the file with the reason, and redact's own rules cover them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "wal_agent" / "redact" / "key_formats.json"
SOURCE = "https://github.com/gitleaks/gitleaks"
LEAST = 3  # characters that a key begins with
MOST = 12  # beginnings of one rule
_END = re.compile(r"(?:\(\?:(?:\[\\x60'\"\\s;\]|\[\^\\w-\]|\[\^a-zA-Z0-9\+/\])\|.{1,12}?\)|\\b)\Z")
_CONTEXT = (r"[\w.-]{0,50}?", r"[ \t\w.-]{0,20}")
_COVERED = {
    "private-key": "formats.without_private_keys",
    "jwt": "formats",
    "curl-auth-header": "context_rules",
    "curl-auth-user": "context_rules",
    "kubernetes-secret-yaml": "names",
    "nuget-config-password": "names",
    "freemius-secret-key": "names",
    "gitlab-session-cookie": "context_rules: cookies",
    "slack-webhook-url": "context_rules: URLs",
    "microsoft-teams-webhook": "context_rules: URLs",
    "sidekiq-sensitive-url": "context_rules: URLs",
    "aws-amazon-bedrock-api-key-short-lived": "formats; this rule has the beginning alone",
}


def translate(regex: str) -> str:
    """Rewrite what Go has and Python has not. A flag in the middle of a group counts up to the group's end."""
    regex = regex.replace("[[:alnum:]]", "[0-9A-Za-z]").replace(r"\z", r"\Z")
    out: list[str] = []
    flagged = [""]  # for each open group, the flag that is in force in it
    at, in_class = 0, False
    while at < len(regex):
        c = regex[at]
        if c == "\\":
            out.append(regex[at : at + 2])
            at += 2
            continue
        if in_class:
            in_class = c != "]"
        elif c == "[":
            in_class = True
        elif flag := re.match(r"\(\?([imsU]+)\)", regex[at:]):
            flagged[-1] = f"(?{flag[1]}:"
            out.append(flagged[-1])
            at += flag.end()
            continue
        elif c == "(":
            flagged.append("")
        elif c == "|" and flagged[-1]:
            out.append(f")|{flagged[-1]}")
            at += 1
            continue
        elif c == ")" and flagged.pop():
            out.append(")")
        out.append(c)
        at += 1
    return "".join(out) + ")" * bool(flagged[-1])


def without_edges(regex: str) -> str:
    """Drop what must stand before and after a key: a text has more kinds of edges than gitleaks knows of. A rule that
    ignores case keeps that for what follows the beginning."""
    rest = regex.removeprefix("(?i)")
    folded = rest != regex
    rest = rest.removeprefix(r"\b")
    while _END.search(rest):
        rest = _END.sub("", rest)
    return f"(?i:{rest})" if folded else rest


def beginnings(regex: str) -> list[str]:
    """All literal texts that a match may begin with, as far as they are fixed."""
    return sorted({text for text, _ in _expand(_parser.parse(regex))})


def _expand(nodes: Any) -> list[tuple[str, bool]]:
    """Texts, and whether each is all of the nodes."""
    found = [("", True)]
    for operation, value in nodes:
        match str(operation):
            case "LITERAL":
                next_ = [(chr(value), True)]
            case "IN" if len(value) <= 6 and all(str(kind) == "LITERAL" for kind, _ in value):
                next_ = [(chr(code), True) for _, code in value]
            case "SUBPATTERN":  # one that ignores case begins as gitleaks writes it, which is the issuer's way
                next_ = _expand(value[3])
            case "BRANCH":
                next_ = list(chain.from_iterable(_expand(branch) for branch in value[1]))
            case _:
                next_ = [("", False)]
        found = [
            (text + more, whole and rest) for text, whole in found for more, rest in (next_ if whole else [("", False)])
        ]
        if not any(whole for _, whole in found) or len(found) > MOST:
            break
    return list(dict.fromkeys(found))


def convert(rules: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows to write, and why each other rule is left out."""
    rows, left_out = [], dict[str, str]()
    for rule in rules:
        name, regex = rule["id"], rule.get("regex", "")
        if name in _COVERED:
            left_out[name] = f"covered by {_COVERED[name]}"
        elif not regex:
            left_out[name] = "goes by a file's name"
        elif any(part in regex for part in _CONTEXT):
            left_out[name] = "goes by a name before the key, as names does"
        else:
            regex = translate(without_edges(regex))
            starts = beginnings(regex)
            if not starts or min(map(len, starts)) < LEAST or len(starts) > MOST:
                left_out[name] = "begins with too few fixed characters"
                continue
            re.compile(regex)
            row = {"id": name, "starts": starts, "regex": regex}
            rows.append({**row, "entropy": rule["entropy"]} if "entropy" in rule else row)
    return rows, left_out


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 64

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", argv[0], *words], check=True, capture_output=True, text=True).stdout

    rows, left_out = convert(tomllib.loads(git("show", "HEAD:config/gitleaks.toml"))["rules"])
    head = {
        "made_by": "python -m scripts.update_key_formats",
        "source": f"{SOURCE} config/gitleaks.toml",
        "version": git("describe", "--tags", "--always", "HEAD").strip(),
        "licence": git("show", "HEAD:LICENSE"),
        "left_out": left_out,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    TARGET.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "formats": [\n{lines}\n]\n}}\n')
    print(f"{len(rows)} formats, {len(left_out)} rules left out")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
