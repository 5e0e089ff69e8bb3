"""The help of commands: examples, and the options of `run` in groups. Plain text, also on a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import typer.core

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (
        'wal-agent run gemini -- --yolo --prompt "fix the tests"',
        'wal-agent run claude --bucket gs://acme-agents --job nightly --restart -- -p "fix the tests"',
        "wal-agent run gemini --continue",
        "wal-agent run generic -- ./train.sh --epochs 3",
    ),
    "resume": ("wal-agent resume", "wal-agent resume --job nightly --wait"),
    "acp": ("wal-agent acp qwen", "wal-agent acp opencode --bucket gs://acme-agents"),
    "status": ("wal-agent status", "wal-agent status --job nightly --watch", "wal-agent status --json"),
    "list": ("wal-agent list", "wal-agent list --here", "wal-agent list --bucket gs://acme-agents --json"),
    "log": ("wal-agent log -n 20", "wal-agent log --crashes", "wal-agent log --follow --json"),
    "stats": ("wal-agent stats", "wal-agent stats --job nightly", "wal-agent stats --bucket gs://acme-agents --json"),
    "effects": ("wal-agent effects", "wal-agent effects --unsettled --job nightly", "wal-agent effects --json"),
    "report": ("wal-agent report --open", "wal-agent report --job nightly --html nightly.html"),
    "recover": ("wal-agent recover --dry-run", "wal-agent recover --dry-run --json"),
    "restore": (
        "wal-agent restore --to ./restored",
        "wal-agent restore --at 14:02 --to ./restored",
        "wal-agent restore --kept 1",
    ),
    "ack": ("wal-agent ack 3 --done", "wal-agent ack 3 --not-done --job nightly", "wal-agent ack migrate --done"),
    "diff": ("wal-agent diff --names", "wal-agent diff --since 14:02", "wal-agent diff --here"),
    "recall": (
        "wal-agent recall migration failed",
        "wal-agent recall --call 17",
        'wal-agent recall "the other branch" --role user --before 2',
    ),
    "mark": ("wal-agent mark before-refactoring", "wal-agent mark --job nightly"),
    "rewind": (
        "wal-agent rewind",
        "wal-agent rewind --last 2",
        "wal-agent rewind --to before-refactoring --compact auto",
        "wal-agent rewind --undo",
    ),
    "compact": ("wal-agent compact --dry-run", "wal-agent compact --policy turns=40,tokens=120000,age=2d --keep 10"),
    "trace list": ("wal-agent trace list", "wal-agent trace list --job nightly --json"),
    "trace show": ("wal-agent trace show 3", "wal-agent trace show 3 --json"),
    "send": (
        'wal-agent send --job nightly "stop deploying, the window is over"',
        "wal-agent send --job nightly --id build-4711 - < report.txt",
        "wal-agent send --job nightly --control pause 30m",
    ),
    "inbox": ("wal-agent inbox", "wal-agent inbox --job nightly --json"),
    "reply": ('wal-agent reply 0199a3 "done, nothing was deployed"',),
    "publish": ('wal-agent publish build "v2 is out"',),
    "checkpoint": (
        'wal-agent checkpoint --title "Move the shop to v2" --progress 40 --note "orders are moved, users are not"',
        "wal-agent checkpoint --plan PLAN.md",
    ),
    "checkpoint list": ("wal-agent checkpoint list", "wal-agent checkpoint list --job nightly --json"),
    "checkpoint show": (
        "wal-agent checkpoint show",
        "wal-agent checkpoint show 3",
        "wal-agent checkpoint show --at 120 --json",
    ),
    "checkpoint diff": ("wal-agent checkpoint diff 2 5",),
    "state put": (
        "wal-agent state put cursor cursor.json --ttl 7d",
        "wal-agent state put page page.txt --if-version 3",
    ),
    "state get": ("wal-agent state get cursor", "wal-agent state get cursor --json --job nightly"),
    "state list": ("wal-agent state list", "wal-agent state list --job nightly --json"),
    "state delete": ("wal-agent state delete cursor",),
    "task": (
        'wal-agent task "find out why the login test fails"',
        'wal-agent task "read the logs of last night" --agent gemini --budget-seconds 600',
    ),
    "step": (
        "wal-agent step migrate --verify './migrate.sh --check' -- ./migrate.sh",
        "wal-agent step fetch --retry-on-failure 3 -- curl -fsS https://example.com/data -o data.json",
    ),
    "settle": ('wal-agent settle 3 --because "terraform show lists the bucket, so the apply was done"',),
    "mcp": ("wal-agent mcp",),
    "pause": (
        'wal-agent pause --for 30m --reason "rate limit"',
        "wal-agent pause --until 14:30",
        "wal-agent pause --end",
    ),
    "stop": ("wal-agent stop", "wal-agent stop --done --job nightly"),
    "rules check": ('wal-agent rules check "terraform apply -auto-approve"',),
    "rules lint": ("wal-agent rules lint",),
    "notify": ("wal-agent notify", "wal-agent notify --test", "wal-agent notify --ack"),
    "fleet ls": ("wal-agent fleet ls --bucket gs://acme-agents", "wal-agent fleet ls --state crashed,due"),
    "fleet watch": (
        "wal-agent fleet watch --notify",
        "wal-agent fleet watch --on-crash 'start-vm \"$WAL_AGENT_JOB\"' --every 30",
    ),
    "fleet report": ("wal-agent fleet report", "wal-agent fleet report --bucket gs://acme-agents --html jobs.html"),
    "fleet claim": ("wal-agent fleet claim --bucket gs://acme-agents --root /work",),
    "unlock": ("wal-agent unlock --epoch 3", 'wal-agent unlock --epoch 3 --now --reason "vm-17 is deleted"'),
    "rename": ("wal-agent rename nightly", "wal-agent rename gemini-shop-k3f9 nightly --bucket gs://acme-agents"),
    "rm": ("wal-agent rm nightly --dry-run", "wal-agent rm nightly --bucket gs://acme-agents"),
    "gc": ("wal-agent gc --dry-run", "wal-agent gc --job nightly"),
    "configure-hooks": (
        "wal-agent configure-hooks --show",
        "wal-agent configure-hooks --skip read_file",
        "wal-agent configure-hooks --agent claude --install",
    ),
    "trust": ("wal-agent trust --show", "wal-agent trust", "wal-agent trust --revoke"),
    "uninstall": ("wal-agent uninstall --dry-run", "wal-agent uninstall"),
    "agents": ("wal-agent agents", "wal-agent agents --json"),
    "doctor": ("wal-agent doctor gemini", "wal-agent doctor --bucket gs://acme-agents"),
    "demo": ("wal-agent demo", "wal-agent demo --agent claude"),
    "drill": (
        "wal-agent drill gemini --model scripted --html drill.html",
        "wal-agent drill gemini --model scripted --policy badly",
        "wal-agent drill claude --scenario all --rounds 3 --yes",
        "wal-agent drill gemini --scenario ./mine.toml --yes -- --yolo -m gemini-2.5-flash --prompt {task}",
    ),
}

FIRST: Final = ("run", "status", "recover", "ack", "list")  # the commands of a first hour, for `wal-agent --help`
TAKE_ARGS: Final = ("run", "resume", "acp", "claim")  # whose words behind `--` are the agent's
GROUPS: Final[Mapping[str, str]] = {  # of the options of `run`, by the name of the parameter; the others are "Options"
    **dict.fromkeys(("bucket", "job", "encryption_key_file", "encryption_key_command"), "Which job"),
    **dict.fromkeys(
        (
            "wait",
            "no_wait",
            "take_over",
            "accept_loss",
            "exit_on_pause",
            "fresh",
            "from_",
            "once",
            "continue_",
            "handoff",
            "from_agent",
        ),
        "This start",
    ),
    **dict.fromkeys(
        (
            "restart",
            "on_quota",
            "restart_limit",
            "restart_window",
            "hang_timeout",
            "on_ambiguity",
            "unverified",
            "loop_limit",
            "accept_logged_args",
        ),
        "Crashes and hangs",
    ),
    **dict.fromkeys(
        (
            "ttl",
            "autosave",
            "checkpoint",
            "checkpoint_ttl_days",
            "compact",
            "drain",
            "preemption",
            "durability",
            "on_outage",
        ),
        "Saving",
    ),
}
_ORDER = ("Which job", "This start", "Crashes and hangs", "Saving")

_KINDS: Final = {"int": "N", "float": "SECONDS", "str": "TEXT", "path": "FILE"}
_AT_LEAST, _BETWEEN = re.compile(r"; x>=([\d.]+)|\[x>=([\d.]+)\]"), re.compile(r"([\d.]+)<=x<=([\d.]+)")


def group_of(name: str) -> str:
    """Return the heading below which `run --help` has the option of parameter `name`."""
    if name in GROUPS:
        return GROUPS[name]
    if name.startswith(("inbox", "control", "messages", "synadia", "state")):
        return "Messages"
    return "Metrics, logs and traces" if name.startswith(("metrics", "log", "otel", "trace")) else "Options"


def help_record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Return name and help of a parameter: a word for each value (all our fractions are seconds), limits in words."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, text = record
    names = re.sub(r"<(int|float|str|path)(?: range)?>", lambda kind: _KINDS[kind[1]], names)
    text = _BETWEEN.sub(r"\1 to \2", _AT_LEAST.sub("", text).rstrip())
    return names, re.sub(r"(\[default: \d+)\.0\b", r"\1", text)


def option_groups(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return name and help of a command's arguments and options by their heading, in the order of `--help`."""
    grouped = command.name in ("run", "resume", "acp")
    found: dict[str, list[tuple[str, str]]] = {"Arguments": [], **({name: [] for name in _ORDER} if grouped else {})}
    for parameter in command.get_params(context):
        record = help_record(parameter, context)
        if record is None:
            continue
        heading = group_of(parameter.name or "") if grouped else "Options"
        if parameter.param_type_name == "argument":
            heading = "Arguments"
        found.setdefault(heading, []).append(record)
    return dict(sorted(found.items(), key=lambda item: item[0] == "Options"))


class Examples:
    """Ends the help of a command with its examples, of a group with the first example of each of its commands."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        words = " ".join(ctx.command_path.split()[1:])
        below = FIRST if not words else [name for name in EXAMPLES if name.startswith(f"{words} ")]
        if examples := EXAMPLES.get(words) or tuple(EXAMPLES[name][0] for name in below):
            with formatter.section("Examples"):
                for example in examples:  # never wrapped: to be copied
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class Command(Examples, typer.core.TyperCommand):
    """A command whose help ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]
        return [*pieces, "[-- ARGS...]"] if self.name in TAKE_ARGS else pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for heading, rows in option_groups(self, ctx).items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
