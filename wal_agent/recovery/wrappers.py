"""Commands that run other commands (sudo, env, xargs, bash -c, ssh, find -exec, ...), seen through. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from wal_agent.recovery.bash import Simple, parse
from wal_agent.recovery.match import program
from wal_agent.recovery.wrapped import Front, Inner, front_of, long_ones
from wal_agent.recovery.wrapped_parts import PARTS
from wal_agent.recovery.wrapped_text import TEXT

__all__ = ["Inner", "inner", "literal_commands"]

_SUDO = Front(
    "AbEHnSPki",
    "ughpCrtTU",
    long_ones(
        "--user= --group= --host= --prompt= --non-interactive --preserve-env --preserve-env= --set-home --stdin --login"
    ),
    sets=True,
)
_PLAIN: Mapping[str, Front] = {
    "sudo": _SUDO,
    "doas": Front("n", "uC"),
    "env": Front(
        "i0v", "uC", long_ones("--ignore-environment --null --unset= --chdir= --debug"), sets=True, alone=True
    ),
    "nohup": Front(least="idempotent", why="may write nohup.out"),
    "time": Front("pvq", "f", long_ones("--portability --verbose --format=")),
    "timeout": Front(
        "vfp", "ks", long_ones("--verbose --preserve-status --foreground --kill-after= --signal="), skip=1
    ),
    "gtimeout": Front(
        "vfp", "ks", long_ones("--verbose --preserve-status --foreground --kill-after= --signal="), skip=1
    ),
    "nice": Front("", "n", long_ones("--adjustment="), extra=re.compile(r"-\d+")),
    "ionice": Front("t", "cn", long_ones("--ignore --class= --classdata=")),
    "chrt": Front("bfiorR", "", skip=1),
    "taskset": Front("", "", skip=1),
    "stdbuf": Front("", "ioe", long_ones("--input= --output= --error=")),
    "setsid": Front("cfw", "", long_ones("--ctty --fork --wait")),
    "command": Front("p"),
    "builtin": Front(),
    "exec": Front("cl", "a"),
    "caffeinate": Front("dimsu", "tw"),
    "unbuffer": Front("p"),
    "chroot": Front(
        "",
        "",
        long_ones("--userspec= --groups= --skip-chdir"),
        skip=1,
        away=True,
        least="unknown",
        why="runs a program of another root",
    ),
    "busybox": Front(),
    "coproc": Front(least="unknown", why="runs a command beside the rest"),
    "systemd-run": Front(
        "tPGdSqr",
        "pEu",
        long_ones(
            "--user --scope --wait --pty --pipe --collect --quiet --unit= --property= --uid= --gid= --setenv="
            " --working-directory= --description= --slice="
        ),
        least="unknown",
        why="runs a command apart from this one",
    ),
}
# A shell tool may run these by their short names (docker exec): options, one operand, and then a command.
_CONTAINERS: Mapping[str, Front] = {
    "docker exec": Front(
        "itd",
        "uwe",
        long_ones("--interactive --tty --detach --privileged --user= --workdir= --env= --env-file="),
        skip=1,
        away=True,
    ),
    "docker compose exec": Front(
        "itdT",
        "uwe",
        long_ones("--detach --privileged --no-TTY --no-tty --user= --workdir= --env= --index="),
        skip=1,
        away=True,
    ),
    "kubectl exec": Front(
        "itq",
        "nc",
        long_ones("--stdin --tty --quiet --namespace= --container= --context="),
        skip=1,
        away=True,
        dashes=True,
    ),
    "docker run": Front(
        "itdP",
        "veupwlhmca",
        long_ones(
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
_DEEP: Mapping[str, Front] = {
    **_CONTAINERS,
    "podman exec": _CONTAINERS["docker exec"],
    "podman run": _CONTAINERS["docker run"],
    "docker container exec": _CONTAINERS["docker exec"],
    "docker-compose exec": _CONTAINERS["docker compose exec"],
    "oc exec": _CONTAINERS["kubectl exec"],
}


def inner(c: Simple, name: str, taken: int) -> tuple[Inner, ...] | None:
    """What a command runs if it is a wrapper; None if it is none, () if it runs nothing, a text that is None where
    that cannot be told. `name`: what the rules call it (docker exec); `taken`: how many of its words that is."""
    words = c.words
    first = program(words[0]) if words else None
    if first is None:
        return None
    if name in _DEEP:
        found = front_of(_DEEP[name], words[taken:], c, f"in a container ({name})")
        return tuple(replace(f, own=words) for f in found) if name.endswith(" run") else found
    special = TEXT.get(first) or PARTS.get(first)
    if special is not None:
        return special(c)
    if first == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
        return ()
    if first in _PLAIN:
        return front_of(_PLAIN[first], words[1:], c, "under another root")
    return None


def literal_commands(text: str) -> tuple[Simple, ...] | None:
    """The commands of a text, in its order, if every word of them is literal and each runs for sure. What only says
    how (sudo, env, timeout, nice, nohup, time, stdbuf) is taken away. None for all other texts."""
    script = parse(text)
    if script is None or script.functions or not script.commands:
        return None
    found = [_bare(c) for c in script.commands]
    return None if None in found else tuple(c for c in found if c is not None)


_HOW = frozenset({"sudo", "doas", "env", "timeout", "gtimeout", "nice", "ionice", "nohup", "time", "stdbuf", "command"})
_MOVES = frozenset({"-C", "--chdir", "-D", "-R", "-b", "-i"})  # another folder, root, time or environment


def _bare(c: Simple, depth: int = 0) -> Simple | None:
    if not c.sure or any(w.text is None for w in c.words) or depth > 8:
        return None
    if not c.words or c.words[0].text not in _HOW:
        return c
    found = inner(c, "", 0)
    if not found or len(found) != 1 or not found[0].words:
        return c if found == () else None
    one = found[0]
    front = c.words[1 : len(c.words) - len(one.words)]
    if any((w.text or "").partition("=")[0] in _MOVES for w in front):
        return None
    return _bare(replace(c, words=one.words, assigns=(*c.assigns, *one.sets)), depth + 1)
