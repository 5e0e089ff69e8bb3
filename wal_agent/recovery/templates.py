"""Load and render the texts for agents: prompts/*.md, and a project's own versions of them in `.wal-agent/prompts/`, as
far as a person has allowed these very bytes (consent.py).

A project's template is hostile input: beside Jinja's sandbox it may use only constructs whose cost and output are
bounded by its own size (no assignments, calls or arithmetic; loops only over the lists given, and not nested).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from wal_agent.consent import Consents, digest
from wal_agent.recovery.format import plural
from wal_agent.resources import shipped
from wal_agent.safefs import path_in_root, read_in_root

FOLDER = ".wal-agent/prompts"
NAMES = ("recovery.md", "preempted.md", "paused.md", "cut_off.md", "start_again.md")
PROTOCOL = "protocol.md"  # the text of every session; no template
PARTS = ("_calls.md", "_rules.md", "_state.md")  # what a template may include; always built in
MUST_LIST_CALLS = ("recovery.md", "start_again.md")  # these must list the calls in flight (I8)
LISTS = ("calls", "finished", "leftovers", "lost")
MAX_SIZE = 32 << 10  # bytes of one template
_FILTERS = ("counted", "join", "upper", "lower", "length")
_NODES = (
    *("Template", "Output", "TemplateData", "Name", "Getattr", "Getitem", "Const", "If", "CondExpr", "For", "Include"),
    *("Compare", "Operand", "And", "Or", "Not", "Filter"),
)


@dataclass(frozen=True, slots=True)
class Templates:
    """`own`: a project's templates that may be used, by name. `problems`: why others are not, in sentences."""

    own: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Render template `name`, the project's own where there is one. ValueError: that one fails."""
        if name not in self.own:
            return str(_environment().get_template(name).render(values))
        try:
            return str(_environment().from_string(self.own[name]).render(values))
        except Exception as error:  # a project's template must not stop a recovery, whatever it does
            raise ValueError(f"{FOLDER}/{name}: {_describe_error(error)}") from error


def read_project_prompts(workspace: Path) -> dict[str, str]:
    """Read the project's own texts that are readable, by name."""
    found = {}
    for name in (*NAMES, PROTOCOL):
        with suppress(ValueError):
            if (text := _read_project_file(workspace, name)) is not None:
                found[name] = text
    return found


def load_templates(workspace: Path, env: Mapping[str, str]) -> Templates:
    """Load the project's own templates that may be used. Never fails: the others are in `problems`."""
    own: dict[str, str] = {}
    given = Consents(workspace.resolve(), env).given()
    problems: list[str] = []
    for name in NAMES:
        try:
            text = _read_project_file(workspace, name)
            if text is not None and not _allowed(name, text, given):
                raise ValueError("you have not allowed this text (wal-agent trust)")
            if text is not None and (why := find_fault(name, text)):
                raise ValueError(why)
        except ValueError as error:
            problems.append(f"{FOLDER}/{name} is not used: {error}.")
            continue
        if text is not None:
            own[name] = text
    return Templates(own, tuple(problems))


def read_protocol(workspace: Path, env: Mapping[str, str]) -> str:
    """Read the text that each agent gets as system context: the project's own where readable and allowed, else ours."""
    try:
        own = _read_project_file(workspace, PROTOCOL)
    except ValueError:
        own = None
    if own is not None and _allowed(PROTOCOL, own, Consents(workspace.resolve(), env).given()):
        return own
    return shipped(f"prompts/{PROTOCOL}").read_text("utf-8")


def _allowed(name: str, text: str, given: Mapping[str, str]) -> bool:
    return given.get(f"{FOLDER}/{name}") == digest(text.encode())


def _read_project_file(workspace: Path, name: str) -> str | None:
    """Read the project's file; None when there is none. ValueError: it is not readable."""
    root = workspace.resolve()
    try:
        real = path_in_root(root, f"{FOLDER}/{name}")
        return None if real is None else read_in_root(root, real, MAX_SIZE)
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
        loader=FileSystemLoader(shipped("prompts")),
        undefined=StrictUndefined,
        autoescape=False,  # Markdown for a model, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # constants are not folded when a template is only parsed or compiled
    )
    env.filters["counted"] = plural
    return env
