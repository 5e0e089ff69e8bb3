"""What OpenCode and a program that is built from it call things, and what else differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from wal_agent.agents.program import Program


class Edition(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: of settings, in a folder of settings; all but the first of them also in a project. `folders`: of a
    project's settings. `package`: on npm, which it installs for a plugin. `passes`, `serves`: its subcommands beside
    those of each. `run`: variables of a run, `quiet`: of a rehearsal, beside those of each. `timers`, `takes_back`: as
    in Capabilities. `native`: beside its npm script, the program that the script starts.
    """

    title: str
    tested: str
    also: tuple[str, ...]
    program: Program
    files: tuple[str, ...]
    folders: tuple[str, ...]
    package: str
    passes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    run: Mapping[str, str] = {}
    quiet: Mapping[str, str] = {}
    timers: Mapping[str, Callable[[bytes], float]] = {}
    takes_back: frozenset[str] = frozenset()
    native: str = ""

    @property
    def name(self) -> str:
        """The agent's, also of its program, its folders and its database; its variables begin with it."""
        return self.program.name

    @property
    def content(self) -> str:
        """The variable with settings."""
        return self.variable("CONFIG_CONTENT")

    def variable(self, name: str) -> str:
        return f"{self.name.upper()}_{name}"

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        return {self.variable(name): value for name, value in values.items()}
