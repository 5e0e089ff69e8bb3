"""Render the recovery prompt (RECOVERY.md), what the agent reads after a crash. Its words are in wording/.

A project may have its own texts in `.wal-agent/prompts/`; they are used as far as a person has allowed these very
bytes (config.Consents). A project's template is hostile input: beside Jinja's sandbox it may use only constructs
whose cost and output are bounded by its own size (no assignments, calls or arithmetic; loops only over the lists
given, not nested).

Pure, but for the templates. The notice holds at most MAX_TOKENS whatever the session was (I9): calls and inputs are cut
until it fits. All foreign text goes through quote.py, so that no tool input can pose as instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from wal_agent import wording
from wal_agent.calls.quote import fenced, inline, show_input
from wal_agent.config import Consents, content_digest
from wal_agent.conversation.checkpoint import NO_WORK, WorkSoFar
from wal_agent.redact import redact_head
from wal_agent.safefs import path_in_root, read_in_root, real_path
from wal_agent.text import clock_time, moment, plural
from wal_agent.wording import messages

if TYPE_CHECKING:
    from wal_agent.conversation.handoff import AgentCall
    from wal_agent.recovery.inflight import InFlight, Unannounced
    from wal_agent.recovery.plan import Alert

# ---- templates -------------------------------------------------------------------------------------------------------

PROMPT_FOLDER = ".wal-agent/prompts"
TEMPLATE_NAMES = ("recovery.md", "preempted.md", "paused.md", "cut_off.md", "start_again.md", "handoff.md")
PROTOCOL = "protocol.md"  # the text of every session; no template
PARTS = ("_calls.md", "_rules.md", "_state.md")  # what a template may include; always built in
MUST_LIST_CALLS = ("recovery.md", "start_again.md", "handoff.md")  # these must list the calls in flight (I8)
LISTS = ("calls", "finished", "leftovers", "lost", "work", "did", "refused", "served", "inner", "timers")
MAX_TEMPLATE_SIZE = 32 << 10  # bytes of one template
_FILTERS = ("counted", "join", "upper", "lower", "length")
_NODES = (
    *("Template", "Output", "TemplateData", "Name", "Getattr", "Getitem", "Const", "If", "CondExpr", "For", "Include"),
    *("Compare", "Operand", "And", "Or", "Not", "Filter"),
)
MAX_TOKENS = 4000
MAX_WORK = 10  # lines of the newest checkpoint
WORK_LINE = 1200  # characters of one: a note is one line
EARLY = 60.0  # seconds that two hosts' clocks may differ without a pause counting as ended early
# How much is shown, in the order in which it is tried: calls in flight, finished calls, characters of each input.
_SIZES = ((10, 20, 900), (10, 20, 450), (10, 10, 200), (5, 5, 200), (3, 3, 120), (1, 0, 80), (0, 0, 0))
# How a tokenizer may cut a text, and a run of letters.
_RUN = re.compile(r"[A-Za-z]+|[0-9]+| +|\s|[^\sA-Za-z0-9]")
_WORD = re.compile(r"[A-Z]?[a-z]{1,13}|[A-Z]{1,8}")


class Templates(msgspec.Struct, frozen=True):
    """`own`: a project's templates that may be used, by name. `problems`: why others are not, in sentences."""

    own: Mapping[str, str] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Render template `name`, the project's own where there is one. ValueError: that one fails."""
        if name not in self.own:
            return str(_environment().get_template(name).render(values))
        try:
            return str(_environment().from_string(self.own[name]).render(values))
        except Exception as error:  # a project's template must not stop a recovery, whatever it does
            raise ValueError(f"{PROMPT_FOLDER}/{name}: {_describe_error(error)}") from error


def read_project_prompts(workspace: Path) -> dict[str, str]:
    """Read the project's own texts that are readable, by name."""
    found = {}
    for name in (*TEMPLATE_NAMES, PROTOCOL):
        with suppress(ValueError):
            if (text := _read_project_file(workspace, name)) is not None:
                found[name] = text
    return found


def load_templates(workspace: Path, env: Mapping[str, str]) -> Templates:
    """Load the project's own templates that may be used. Never fails: the others are in `problems`."""
    own: dict[str, str] = {}
    given = Consents(real_path(workspace), env).given()
    problems: list[str] = []
    for name in TEMPLATE_NAMES:
        try:
            text = _read_project_file(workspace, name)
            if text is not None and not _allowed(name, text, given):
                raise ValueError("you have not allowed this text (wal-agent trust)")
            if text is not None and (why := find_fault(name, text)):
                raise ValueError(why)
        except ValueError as error:
            problems.append(f"{PROMPT_FOLDER}/{name} is not used: {error}.")
            continue
        if text is not None:
            own[name] = text
    return Templates(own, tuple(problems))


def read_protocol(workspace: Path, env: Mapping[str, str]) -> str:
    """Read the text that each agent gets as system context: the project's own where readable and allowed, else the
    built-in one."""
    try:
        own = _read_project_file(workspace, PROTOCOL)
    except ValueError:
        own = None
    if own is not None and _allowed(PROTOCOL, own, Consents(real_path(workspace), env).given()):
        return own
    return (wording.FOLDER / PROTOCOL).read_text("utf-8")


def _allowed(name: str, text: str, given: Mapping[str, str]) -> bool:
    return given.get(f"{PROMPT_FOLDER}/{name}") == content_digest(text.encode())


def _read_project_file(workspace: Path, name: str) -> str | None:
    """Read the project's file; None when there is none. ValueError: it is not readable."""
    root = real_path(workspace)
    try:
        real = path_in_root(root, f"{PROMPT_FOLDER}/{name}")
        return None if real is None else read_in_root(root, real, MAX_TEMPLATE_SIZE)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"it {error}") from error


def find_fault(name: str, text: str) -> str | None:
    """Return why a project's template may not be used, with the line; None where it may."""
    from jinja2 import TemplateError, TemplateSyntaxError, nodes

    try:
        found = [*_walk(_environment().parse(text))]
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {_describe_error(error)}"
    except TemplateError as error:
        return _describe_error(error)
    except RecursionError:
        return "it is nested too deeply"
    for node, in_loop in found:
        what = type(node).__name__
        line = f"line {getattr(node, 'lineno', 0)}: "
        if what not in _NODES:
            return f"{line}{what} is not possible here"
        if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            return f"{line}the filter {node.name[:40]} is not possible here ({', '.join(_FILTERS)} are)"
        if isinstance(node, nodes.Include) and not (
            isinstance(node.template, nodes.Const) and node.template.value in PARTS
        ):
            return f"{line}only {', '.join(PARTS)} can be included"
        if isinstance(node, nodes.For) and (in_loop or not _loops_over_lists(node)):
            return f"{line}a loop can only go over {', '.join(LISTS)}, and not inside another"
    if name in MUST_LIST_CALLS and not any(_lists_calls(node) for node, _ in found):
        return 'it does not tell the calls in flight: loop over calls, or {% include "_calls.md" %}'
    return None


def _walk(node: Any, in_loop: bool = False) -> Iterator[tuple[Any, bool]]:
    from jinja2 import nodes

    yield node, in_loop
    for child in node.iter_child_nodes():
        yield from _walk(child, in_loop or isinstance(node, nodes.For))


def _loops_over_lists(node: Any) -> bool:
    from jinja2 import nodes

    return isinstance(node.iter, nodes.Name) and node.iter.name in LISTS and not node.recursive


def _lists_calls(node: Any) -> bool:
    from jinja2 import nodes

    if isinstance(node, nodes.Include):
        return isinstance(node.template, nodes.Const) and node.template.value == "_calls.md"
    return isinstance(node, nodes.For) and isinstance(node.iter, nodes.Name) and node.iter.name == "calls"


def _describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


@cache
def _environment() -> Any:
    # Imported here: a start without a recovery, and every hook, must not pay for it.
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(wording.FOLDER),
        undefined=StrictUndefined,
        autoescape=False,  # Markdown for a model, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # constants are not folded when a template is only parsed or compiled
    )
    env.filters["counted"] = plural
    return env


# ---- the recovery prompt ---------------------------------------------------------------------------------------------


_BUILTIN_TEMPLATES = Templates()


class FinishedCall(msgspec.Struct, frozen=True):
    """A call that ended but is in no saved conversation."""

    tool: str
    input: bytes | None
    how: str  # its ending


class LostCalls(msgspec.Struct, frozen=True):
    """Calls that ran, and whose changes to files may be missing in this workspace: the newest ones, and the `count`
    of all."""

    calls: tuple[LostCall, ...] = ()
    count: int = 0


class LostCall(msgspec.Struct, frozen=True):
    call: int
    tool: str
    input: bytes | None


class HandedOver(msgspec.Struct, frozen=True):
    """What an agent is to know of those that had the job before. `did`: their calls, oldest first; `parts`: of the
    transcript, `told`: whose. `new`: the agent has no session of its own in this job."""

    before: str
    did: tuple[AgentCall, ...] = ()
    parts: tuple[Path, ...] = ()
    told: tuple[str, ...] = ()
    new: bool = True


class Pause(msgspec.Struct, frozen=True):
    """Why the job paused, in the pauser's words, and until when (since 1970)."""

    until: float
    reason: str


class PromptInput(msgspec.Struct, frozen=True):
    """The facts that the prompt is rendered from. Times in seconds since 1970 (UTC): `stopped` is the old run's last
    sign of life, `saved` the last capture of its session. `tree`: one or two sentences on the working tree, safe to
    show. `alone`: the agent decides by itself where it would ask a person. `warnings`: sentences of the plan. `task`:
    where no session could be resumed (StartAgain), the user's own text, which stands whole before the notice.
    `unlogged`: the log has no call of this agent. `work`: what the newest checkpoint says of the task."""

    alert: Alert
    old_host: str
    new_host: str
    same_host: bool
    stopped: float
    saved: float
    now: float
    calls: tuple[InFlight, ...] = ()
    finished: tuple[FinishedCall, ...] = ()
    unannounced: tuple[Unannounced, ...] = ()
    put_back: int = 0
    leftovers: tuple[str, ...] = ()
    moved: tuple[str, str] | None = None  # the working folder's path before and now, where they differ
    turn_completed: bool = False
    tree: str = messages.TREE_NOT_SAVED
    alone: bool = False
    warnings: tuple[str, ...] = ()
    task: str | None = None
    unlogged: bool = False
    pause: Pause | None = None  # where the alert is "paused"
    given_up: str = ""  # why, where the alert is "preempted" and it is known (format.yield_reason)
    lost: LostCalls = LostCalls()
    work: WorkSoFar = NO_WORK
    handed: HandedOver | None = None  # where the alert is "handoff"
    replaces: bool = False  # a notice at the session's end that the model has not answered
    refused: tuple[FinishedCall, ...] = ()  # calls that wal-agent refused at the end of the old run
    served: tuple[FinishedCall, ...] = ()  # servers and watchers that ended with the old run
    timers: tuple[FinishedCall, ...] = ()  # what the agent had scheduled for later, and is gone
    beside: int = 0  # tokens of what is put behind the notice (messages), which count with it
    inner: tuple[FinishedCall, ...] = ()  # changing calls that a subagent of a call in flight had completed

    @property
    def is_quiet(self) -> bool:
        """Whether the agent need be told nothing: nothing is open, lost, moved or was refused."""
        calls = self.calls or self.inner or self.unannounced or self.refused or self.served or self.unlogged
        more = self.timers or self.leftovers or self.moved or self.handed or self.pause or self.task
        return not (calls or more or self.lost.count)


def render_prompt(facts: PromptInput, templates: Templates = _BUILTIN_TEMPLATES) -> str:
    """Render the text for the agent: at most MAX_TOKENS with what stands beside it, then the task as it is.

    Where a project's own template cannot be rendered, or is too long, the built-in one is used, with a warning."""
    name = _template_name(facts)
    calls = [_call_values(c) for c in facts.calls[: _SIZES[0][0]]]
    finished = [(inline(f.tool, 60), show_input(f.tool, f.input), f.how) for f in facts.finished[: _SIZES[0][1]]]
    lost = [(f"#{c.call} {inline(c.tool, 60)}", show_input(c.tool, c.input)) for c in facts.lost.calls[-_SIZES[0][1] :]]
    texts = (templates.render(name, _template_values(facts, calls, finished, lost, *size)) for size in _SIZES)
    try:
        notice = next((text for text in texts if estimate_tokens(text) + facts.beside <= MAX_TOKENS), None)
        why = f"{PROMPT_FOLDER}/{name}: it has more than {MAX_TOKENS} tokens" if notice is None else ""
    except ValueError as error:
        notice, why = None, str(error)
    if notice is None:
        assert name in templates.own, "the built-in text fits, whatever the facts are"
        warned = replace(facts, warnings=(*facts.warnings, messages.own_text_used(inline(why, 300))))
        return render_prompt(warned, replace(templates, own={}))
    return notice if facts.task is None else f"{messages.TASK_FIRST}\n\n{facts.task}\n\n{notice}"


def estimate_tokens(text: str) -> int:
    """Bound the text's tokens from above, as byte-pair tokenizers count them (test_prompt_tokens.py): letters, digits
    and signs apart. A plain word is one token or two; letters that are none (hashes, base64) are one for each two."""
    count, after_digit = 0, False
    for found in _RUN.finditer(text):
        run, size = found[0], found.end() - found.start()
        if not run.isascii():
            count += len(run.encode("utf-8", "replace")) - 1
        elif run.isalpha():
            plain = _WORD.fullmatch(run) and not after_digit and not text[found.end() : found.end() + 1].isdigit()
            count += 1 + size // 9 if plain else -(-size // 2)
        elif run.isdigit():
            count += -(-size // 3)
        else:
            count += size > 1 if run[0] == " " else 1
        after_digit = run.isdigit()
    return count


def _template_name(facts: PromptInput) -> str:
    if facts.handed is not None:
        return "handoff.md"
    if facts.task is not None:
        return "start_again.md"
    if facts.calls:
        return "recovery.md"
    return f"{facts.alert}.md" if facts.alert in ("preempted", "paused") else "cut_off.md"


def _template_values(
    facts: PromptInput,
    calls: list[dict[str, str]],
    finished: list[tuple[str, str, str]],
    lost: list[tuple[str, str]],
    most: int,
    most_finished: int,
    chars: int,
) -> dict[str, Any]:
    """Return what templates can use (docs/RECOVERY.md lists it)."""
    in_all = sum(len(c.calls) for c in facts.calls)
    shown = sum(len(c.calls) for c in facts.calls[:most])
    return {
        "what_happened": _what_happened(facts),
        "saved": f"{clock_time(facts.saved)} UTC",
        "heading": messages.in_flight_heading(in_all),
        "calls": [{**c, "input": fenced(c["input"], chars)} for c in calls[:most]],
        "more": in_all - shown,
        "begin": messages.begin_with([(c.look, c.behind_cd) for c in facts.calls if c.asks or c.look]),
        "finished": [f"{tool} {inline(data, min(chars, 160))}: {how}" for tool, data, how in finished[:most_finished]],
        "finished_more": len(facts.finished[most_finished:]),
        "unannounced": [_unannounced(c, chars) for c in facts.unannounced[:most]],
        "unannounced_more": len(facts.unannounced[most:]),
        "lost": [f"{tool} {inline(data, min(chars, 160))}" for tool, data in lost[-most_finished:] if most_finished],
        "lost_more": facts.lost.count - min(len(lost), most_finished),
        "put_back": facts.put_back,
        "leftovers": [inline(text, 80) for text in facts.leftovers[:5]],
        "leftovers_more": len(facts.leftovers[5:]),
        "refused": [_shown_call(c, chars) for c in facts.refused[-most:] if most],
        "inner": [f"{_shown_call(c, chars)}: {c.how}" for c in facts.inner[-most_finished:] if most_finished],
        "inner_more": max(0, len(facts.inner) - most_finished),
        "timers": [_shown_call(c, chars) for c in facts.timers[-most:] if most],
        "served": [_shown_call(c, chars) for c in facts.served[-most:] if most],
        "work": [
            inline(line, min(WORK_LINE, 2 * chars)) for line in facts.work.lines[: MAX_WORK if most >= 10 else most]
        ],
        "work_from": facts.work.source,
        **_handed_values(facts.handed, most_finished, chars),
        "moved": tuple(inline(path) for path in facts.moved) if facts.moved else None,
        "turn_completed": facts.turn_completed,
        "tree": facts.tree,
        "alone": facts.alone,
        "unlogged": facts.unlogged,
        "waiting_for": bool(facts.pause and facts.pause.reason and facts.pause.reason not in messages.OWN_PAUSES),
        "warnings": _first_warnings(facts.warnings, max(2, most)),
    }


def _first_warnings(warnings: Sequence[str], most: int) -> list[str]:
    more = len(warnings) - most
    return [*map(_cut_sentence, warnings[:most]), *([f"{plural(more, 'more note')} are left out."] if more > 0 else [])]


def _handed_values(handed: HandedOver | None, most: int, chars: int) -> dict[str, Any]:
    if handed is None:
        return {"before": "", "did": [], "did_more": 0, "transcript": "", "new": False, "told": "", "ran": ""}
    shown = handed.did[-most:] if most else ()
    parts = handed.parts
    place = f"{inline(str(parts[0]), 300)}" if parts else ""
    several = len({each.agent for each in handed.did}) > 1
    return {
        "before": inline(handed.before, 40),
        "did": [
            f"#{c.call} {f'{inline(who, 40)} ' if several else ''}{inline(c.tool, 60)} "
            f"{inline(show_input(c.tool, c.input), min(chars, 160))}: {c.how}"
            for who, c in ((each.agent, each.call) for each in shown)
        ],
        "ran": " and ".join(inline(name, 40) for name in dict.fromkeys(each.agent for each in handed.did)),
        "did_more": len(handed.did) - len(shown),
        "transcript": f"{place} to {inline(parts[-1].name, 40)}" if len(parts) > 1 else place,
        "told": ", ".join(inline(name, 40) for name in handed.told),
        "new": handed.new,
    }


def _what_happened(facts: PromptInput) -> str:
    said = messages.what_happened(
        facts.alert,
        facts.same_host,
        inline(facts.old_host, 60),
        inline(facts.new_host, 60),
        facts.stopped,
        facts.now,
        _paused(facts),
        messages.reason_given_up(facts.given_up, bool(facts.calls)),
    )
    return f"{said} {messages.REPLACES}" if facts.replaces else said


def _paused(facts: PromptInput) -> str:
    if facts.pause is None:
        return messages.PAUSED
    lasts = facts.pause.until - facts.stopped  # not above 0 where the run was to start again at once
    until = moment(facts.pause.until, facts.stopped, exact=lasts < 600, utc=True) if lasts > 0 else ""
    reason = inline(facts.pause.reason, 200) if facts.pause.reason else ""
    return messages.paused(facts.stopped, until, reason, early=facts.now < facts.pause.until - EARLY)


def _shown_call(c: FinishedCall, chars: int) -> str:
    return f"{inline(c.tool, 60)} {inline(show_input(c.tool, c.input), min(chars, 160))}"


def _unannounced(c: Unannounced, chars: int) -> str:
    return f"{inline(c.tool, 60)} {inline(show_input(c.tool, c.input), min(chars, 160))}: class {c.cls}, {c.how}"


def _call_values(c: InFlight) -> dict[str, str]:
    return {
        "tool": inline(c.tool, 60),
        "folder": inline(c.folder, 200) if c.folder else "",
        "times": messages.identical(len(c.calls), c.issued),
        "started": clock_time(c.started),
        "cls": c.cls,
        "why": _why(c),
        "input": show_input(c.tool, c.input),
        "finding": messages.prompt_finding(c.finding, _cut_sentence(c.because)),
        "next": c.next,
        "settle": messages.settle_command(c.calls) if c.asks else "",
    }


def _why(c: InFlight) -> str:
    from wal_agent.calls.rules.table import OURS

    if c.source == OURS:
        return f"it {c.why}"
    return messages.project_rule(inline(c.rule, 60), inline(c.source, 80), inline(c.why, 200))


def _cut_sentence(text: str) -> str:
    """Cut a sentence of wal-agent's own, which may quote a path, to one short line."""
    flat = " ".join(redact_head(text, 2000).split())
    return flat if len(flat) <= 400 else flat[:399] + "…"
