"""Commands that run other commands (sudo, env, xargs, bash -c, ssh, find -exec, ...), seen through. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from wal_agent.recovery.wrapped import InnerRun, WrapperSpec, _read_wrapper, _split_names
from wal_agent.recovery.wrapped_parts import _ARGV_WRAPPERS
from wal_agent.shell.match import program_name
from wal_agent.shell.syntax import Simple, parse
from wal_agent.shell.wrappers import _TEXT_WRAPPERS

__all__ = ["InnerRun", "unwrap", "literal_commands"]

_SUDO = WrapperSpec(
    "AbEHnSPki",
    "ughpCrtTU",
    _split_names(
        "--user= --group= --host= --prompt= --non-interactive --preserve-env --preserve-env= --set-home --stdin --login"
    ),
    sets=True,
)
_PREFIX_WRAPPERS: Mapping[str, WrapperSpec] = {
    "sudo": _SUDO,
    "doas": WrapperSpec("n", "uC"),
    "env": WrapperSpec(
        "i0v", "uC", _split_names("--ignore-environment --null --unset= --chdir= --debug"), sets=True, alone=True
    ),
    "nohup": WrapperSpec(least="idempotent", why="may write nohup.out"),
    "time": WrapperSpec("pvq", "f", _split_names("--portability --verbose --format=")),
    "timeout": WrapperSpec(
        "vfp", "ks", _split_names("--verbose --preserve-status --foreground --kill-after= --signal="), skip=1
    ),
    "gtimeout": WrapperSpec(
        "vfp", "ks", _split_names("--verbose --preserve-status --foreground --kill-after= --signal="), skip=1
    ),
    "nice": WrapperSpec("", "n", _split_names("--adjustment="), extra=re.compile(r"-\d+")),
    "ionice": WrapperSpec("t", "cn", _split_names("--ignore --class= --classdata=")),
    "chrt": WrapperSpec("bfiorR", "", skip=1),
    "taskset": WrapperSpec("", "", skip=1),
    "stdbuf": WrapperSpec("", "ioe", _split_names("--input= --output= --error=")),
    "setsid": WrapperSpec("cfw", "", _split_names("--ctty --fork --wait")),
    "command": WrapperSpec("p"),
    "builtin": WrapperSpec(),
    "exec": WrapperSpec("cl", "a"),
    "caffeinate": WrapperSpec("dimsu", "tw"),
    "unbuffer": WrapperSpec("p"),
    "chroot": WrapperSpec(
        "",
        "",
        _split_names("--userspec= --groups= --skip-chdir"),
        skip=1,
        away=True,
        least="unknown",
        why="runs a program of another root",
    ),
    "busybox": WrapperSpec(),
    "coproc": WrapperSpec(least="unknown", why="runs a command beside the rest"),
    "systemd-run": WrapperSpec(
        "tPGdSqr",
        "pEu",
        _split_names(
            "--user --scope --wait --pty --pipe --collect --quiet --unit= --property= --uid= --gid= --setenv="
            " --working-directory= --description= --slice="
        ),
        least="unknown",
        why="runs a command apart from this one",
    ),
}
# A shell tool may run these by their short names (docker exec): options, one operand, and then a command.
_CONTAINERS: Mapping[str, WrapperSpec] = {
    "docker exec": WrapperSpec(
        "itd",
        "uwe",
        _split_names("--interactive --tty --detach --privileged --user= --workdir= --env= --env-file="),
        skip=1,
        away=True,
    ),
    "docker compose exec": WrapperSpec(
        "itdT",
        "uwe",
        _split_names("--detach --privileged --no-TTY --no-tty --user= --workdir= --env= --index="),
        skip=1,
        away=True,
    ),
    "kubectl exec": WrapperSpec(
        "itq",
        "nc",
        _split_names("--stdin --tty --quiet --namespace= --container= --context="),
        skip=1,
        away=True,
        dashes=True,
    ),
    "docker run": WrapperSpec(
        "itdP",
        "veupwlhmca",
        _split_names(
            "--rm --init --privileged --read-only --interactive --tty --detach --name= --volume= --env= --publish="
            " --workdir= --network= --net= --user= --entrypoint= --mount= --platform= --gpus= --memory= --cpus="
            " --env-file= --hostname= --label= --add-host= --pull= --restart= --cap-add= --shm-size= --ulimit="
            " --security-opt= --device= --tmpfs="
        ),
        skip=1,
        away=True,
        least="unknown",
        why="runs a program in a new container",
    ),
}
_CONTAINER_WRAPPERS: Mapping[str, WrapperSpec] = {
    **_CONTAINERS,
    "podman exec": _CONTAINERS["docker exec"],
    "podman run": _CONTAINERS["docker run"],
    "docker container exec": _CONTAINERS["docker exec"],
    "docker-compose exec": _CONTAINERS["docker compose exec"],
    "oc exec": _CONTAINERS["kubectl exec"],
}


def unwrap(c: Simple, name: str, taken: int) -> tuple[InnerRun, ...] | None:
    """What a command runs if it is a wrapper; None if it is none, () if it runs nothing, a text that is None where
    that cannot be told. `name`: what the rules call it (docker exec); `taken`: how many of its words that is."""
    words = c.words
    first = program_name(words[0]) if words else None
    if first is None:
        return None
    if name in _CONTAINER_WRAPPERS:
        found = _read_wrapper(_CONTAINER_WRAPPERS[name], words[taken:], c, f"in a container ({name})")
        return tuple(replace(f, own=words) for f in found) if name.endswith(" run") else found
    special = _TEXT_WRAPPERS.get(first) or _ARGV_WRAPPERS.get(first)
    if special is not None:
        return special(c)
    if first == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
        return ()
    if first in _PREFIX_WRAPPERS:
        return _read_wrapper(_PREFIX_WRAPPERS[first], words[1:], c, "under another root")
    return None


def literal_commands(text: str) -> tuple[Simple, ...] | None:
    """The commands of a text, in its order, if every word of them is literal and each runs for sure. What only says
    how (sudo, env, timeout, nice, nohup, time, stdbuf) is taken away. None for all other texts."""
    script = parse(text)
    if script is None or script.functions or not script.commands:
        return None
    found = [_strip_prefixes(c) for c in script.commands]
    return None if None in found else tuple(c for c in found if c is not None)


_PREFIXES = frozenset(
    {"sudo", "doas", "env", "timeout", "gtimeout", "nice", "ionice", "nohup", "time", "stdbuf", "command"}
)
_MOVES = frozenset({"-C", "--chdir", "-D", "-R", "-b", "-i"})  # another folder, root, time or environment


def _strip_prefixes(c: Simple, depth: int = 0) -> Simple | None:
    if not c.sure or any(w.text is None for w in c.words) or depth > 8:
        return None
    if not c.words or c.words[0].text not in _PREFIXES:
        return c
    found = unwrap(c, "", 0)
    if not found or len(found) != 1 or not found[0].words:
        return c if found == () else None
    one = found[0]
    front = c.words[1 : len(c.words) - len(one.words)]
    if any((w.text or "").partition("=")[0] in _MOVES for w in front):
        return None
    return _strip_prefixes(replace(c, words=one.words, assigns=(*c.assigns, *one.sets)), depth + 1)
