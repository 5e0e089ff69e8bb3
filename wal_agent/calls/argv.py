"""Read the words of a command: its program, its options and operands, and git's command line.

Words are parsed as GNU getopt and git do. An option that is not listed makes a command unreadable: it may change what
the command does, and no verdict may rest on an option that nobody thought of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_BIN = re.compile(r"/(?:usr/(?:local/)?)?s?bin/([^/]+)|/opt/homebrew/bin/([^/]+)")
_MERGE = (
    "-q|--quiet -v|--verbose --ff --no-ff --ff-only --commit --no-edit --stat -n|--no-stat --signoff --no-verify "
    "--allow-unrelated-histories --no-rerere-autoupdate --no-gpg-sign --progress --no-progress --no-autostash"
)
_PICK = "-x --ff --no-edit --allow-empty --keep-redundant-commits -s|--signoff --no-gpg-sign"
_FETCH = (
    "-q|--quiet -v|--verbose -p|--prune -t|--tags -n|--no-tags -f|--force --all --unshallow --progress -4|--ipv4 "
    "-6|--ipv6 -k|--keep --no-recurse-submodules --set-upstream"
)
_HARMLESS = frozenset({"--no-pager", "-P", "-p", "--paginate", "--no-optional-locks", "--no-replace-objects"})
# Settings that change nothing that a verdict rests on.
_SETTING = re.compile(
    r"(?:user|author|committer|color|advice|gpg)\.[\w.-]+=.*|(?:commit|tag)\.gpgsign=\w+|gc\.auto=\d+", re.I
)


def program_name(text: str | None) -> str | None:
    """The program that a command's first word names; None for scripts, and where it is not known."""
    if not text:
        return None
    if "/" not in text:
        return text
    m = _BIN.fullmatch(text)
    return (m[1] or m[2]) if m else None


class Options(msgspec.Struct, frozen=True):
    """The known options by spelling, with the name that `Argv` has for them: `flags`, `valued`, and `optional` ones,
    which take a value only when it is attached."""

    flags: dict[str, str]
    valued: dict[str, str]
    optional: dict[str, str]


class Argv(msgspec.Struct, frozen=True):
    """`on`: flags given. `values`: of options that take one, in order. `operands`: the words that are no options;
    `paths`: those after a "--", where these are kept apart and there is one."""

    on: frozenset[str]
    values: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    paths: tuple[str, ...] | None

    def every(self, name: str) -> tuple[str, ...]:
        return tuple(v for k, v in self.values if k == name)

    def last(self, name: str) -> str | None:
        return next(iter(self.every(name)[::-1]), None)

    def has(self, *names: str) -> bool:
        return any(n in self.on or any(n == k for k, _ in self.values) for n in names)


def parse_options(flags: str, valued: str = "", optional: str = "") -> Options:
    """Each word is the spellings of one option, "-m|--message"; the last one without dashes is its name."""

    def table(text: str) -> dict[str, str]:
        return {spelling: word.split("|")[-1].lstrip("-") for word in text.split() for spelling in word.split("|")}

    return Options(table(flags), table(valued), table(optional))


def parse_argv(words: Sequence[str], known: Options, paths_apart: bool = False) -> Argv | None:
    """The words behind a program or subcommand; None where it has an option that is not known."""
    on: set[str] = set()
    values: list[tuple[str, str]] = []
    operands: list[str] = []
    paths: tuple[str, ...] | None = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            paths = tuple(rest)
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and (flag := known.flags.get(name) or known.optional.get(name)):
                on.add(flag)
            elif equals and name in known.optional:
                values.append((known.optional[name], value))
            elif name in known.valued and (equals or rest):
                values.append((known.valued[name], value if equals else rest.pop(0)))
            else:
                return None
        elif word.startswith("-") and word != "-":
            if not _parse_cluster(word[1:], known, on, values, rest):
                return None
        else:
            operands.append(word)
    if not paths_apart:
        operands, paths = [*operands, *(paths or ())], None
    return Argv(frozenset(on), tuple(values), tuple(operands), paths)


def _parse_cluster(letters: str, known: Options, on: set[str], values: list[tuple[str, str]], rest: list[str]) -> bool:
    """Short options in one word; the first that takes a value takes what follows it."""
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        if name in known.flags:
            on.add(known.flags[name])
        elif name in known.optional:
            if letters:
                values.append((known.optional[name], letters))
            else:
                on.add(known.optional[name])
            return True
        elif name in known.valued and (letters or rest):
            values.append((known.valued[name], letters or rest.pop(0)))
            return True
        else:
            return False
    return True


class GitCommand(Argv, frozen=True):
    """`paths`: the words after a "--", None where there is none. `folders`: each -C, in order."""

    verb: str
    folders: tuple[str, ...]


VERBS: dict[str, Options] = {
    "commit": parse_options(
        "-a|--all -q|--quiet -v|--verbose --amend --allow-empty --allow-empty-message -n|--no-verify --no-edit "
        "-s|--signoff --no-signoff --no-gpg-sign --no-post-rewrite --reset-author -o|--only --no-status --verify",
        "-m|--message --author --date -F|--file --cleanup --trailer -C|--reuse-message",
        "-S|--gpg-sign",
    ),
    "add": parse_options("-A|--all -u|--update -f|--force -v|--verbose -N|--intent-to-add --ignore-errors --sparse"),
    "rm": parse_options("-r -f|--force -q|--quiet --cached --ignore-unmatch"),
    "mv": parse_options("-f|--force -v|--verbose -k"),
    "merge": parse_options(_MERGE, "-m|--message -s|--strategy -X|--strategy-option --into-name", "-S|--gpg-sign"),
    "rebase": parse_options(
        "-q|--quiet -v|--verbose --autostash --no-autostash -f|--force-rebase --no-ff --keep-empty --no-keep-empty "
        "-m|--merge --apply --stat -n|--no-stat --signoff --no-verify --fork-point --no-fork-point --update-refs "
        "--autosquash --no-autosquash --no-gpg-sign --committer-date-is-author-date --reset-author-date",
        "--onto -s|--strategy -X|--strategy-option --empty",
        "-r|--rebase-merges -S|--gpg-sign",
    ),
    "checkout": parse_options(
        "-q|--quiet -f|--force --detach --no-track --progress --no-progress --no-guess --guess --no-overwrite-ignore",
        "-b -B",
        "-t|--track",
    ),
    "switch": parse_options(
        "-q|--quiet -f|--force|--discard-changes -d|--detach --no-track --progress --no-progress --no-guess --guess",
        "-c|--create|-b -C|--force-create|-B",
        "-t|--track",
    ),
    "restore": parse_options("-q|--quiet -S|--staged -W|--worktree --ours --theirs", "-s|--source"),
    "reset": parse_options("-q|--quiet --soft --mixed --hard --keep --merge --no-refresh"),
    "tag": parse_options(
        "-a|--annotate -s|--sign -f|--force -d|--delete --no-sign --create-reflog",
        "-m|--message -F|--file -u --cleanup",
    ),
    "branch": parse_options("-f|--force -q|--quiet -d|--delete -D -m|--move -M --no-track", "", "-t|--track"),
    "push": parse_options(
        "-q|--quiet -v|--verbose -u|--set-upstream -f|--force --force-if-includes --no-verify --verify --atomic "
        "--progress --no-progress --porcelain --no-recurse-submodules --thin --no-thin -4|--ipv4 -6|--ipv6 -d|--delete",
        "-o|--push-option",
        "--force-with-lease",
    ),
    "pull": parse_options(
        f"{_FETCH} --ff --no-ff --ff-only --no-rebase --no-edit --no-stat --autostash --no-autostash --no-verify",
        "--depth -s|--strategy -X|--strategy-option -j|--jobs",
        "-r|--rebase",
    ),
    "fetch": parse_options(f"{_FETCH} --no-write-fetch-head", "--depth -j|--jobs --shallow-since --shallow-exclude"),
    "cherry-pick": parse_options(_PICK, "-m|--mainline -s|--strategy -X|--strategy-option", "-S|--gpg-sign"),
    "revert": parse_options(_PICK, "-m|--mainline -s|--strategy -X|--strategy-option", "-S|--gpg-sign"),
    "stash": parse_options("-q|--quiet -u|--include-untracked -a|--all --index", "-m|--message"),
    "clone": parse_options(
        "-q|--quiet -v|--verbose --progress --single-branch --no-single-branch --no-tags -l|--local --no-hardlinks "
        "-s|--shared --no-local",
        "-b|--branch --depth -o|--origin -j|--jobs --shallow-since --filter",
    ),
    "init": parse_options("-q|--quiet", "-b|--initial-branch --object-format"),
    "worktree": parse_options("-q|--quiet -f|--force -d|--detach --no-track --guess-remote", "-b -B", "--track"),
}


def parse_git(words: Sequence[str]) -> GitCommand | None:
    """None for what is no git command, or cannot be read for sure."""
    if not words or program_name(words[0]) != "git":
        return None
    rest = list(words[1:])
    folders: list[str] = []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-C" and rest:
            folders.append(rest.pop(0))
        elif word == "-c" and rest and _SETTING.fullmatch(rest[0]):
            rest.pop(0)
        elif word not in _HARMLESS:
            return None
    if not rest or rest[0] not in VERBS:
        return None
    found = parse_argv(rest[1:], VERBS[rest[0]], paths_apart=True)
    if found is None:
        return None
    return GitCommand(found.on, found.values, found.operands, found.paths, rest[0], tuple(folders))
