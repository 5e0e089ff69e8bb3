"""Random small commands on the same few names, run in part: alone in a list, and beside another call. Times are not
compared: a file that holds already what is to be written to it is told as completed."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.evidence.stage import Snapshot, age, assessed, shell, snapshot
from tests.tiers import examples

NAMES = st.sampled_from(["a", "b", "d", "d/a", "new", "./a", "d/../b", "link"])
COMMANDS = st.one_of(
    st.builds("{} {}".format, st.sampled_from(["rm", "rm -f", "rm -rf", "rmdir", "touch", "mkdir", "mkdir -p"]), NAMES),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["mv", "mv -f", "cp", "cp -r", "cp -p", "ln -s", "ln", "ln -sfn"]),
        NAMES,
        NAMES,
    ),
    st.builds(
        "{} {}".format, st.sampled_from(["echo x >", "echo x >>", "truncate -s 1", "sed -i s/a/b/", "cat a >"]), NAMES
    ),
)
BOUND = settings(max_examples=examples(70))


def shop(top: Path) -> None:
    (top / "d").mkdir(parents=True)
    for name, text in (("a", "aaa\n"), ("b", "x\n"), ("d/a", "a in d\n")):
        (top / name).write_text(text)
    (top / "link").symlink_to("d")
    age(top)


def bash(command: str, top: Path) -> None:
    subprocess.run(["bash", "-c", command], cwd=top, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def world(*commands: str) -> Snapshot:
    """What commands leave, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "shop"
        shop(top)
        for command in commands:
            bash(command, top)
        return snapshot(top, times=False)


@BOUND
@given(st.lists(COMMANDS, min_size=1, max_size=3), st.sampled_from([" && ", "; ", "\n"]), st.data())
def test_a_list_that_was_cut(commands: list[str], by: str, data: st.DataObject) -> None:
    ran = data.draw(st.integers(0, len(commands)))
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "shop"
        shop(top)
        call, was = shell(by.join(commands)), snapshot(top, times=False)
        facts = call.facts(top)
        if ran:
            bash(by.join(commands[:ran]), top)
        now = snapshot(top, times=False)
        (said,) = assessed(top, (call, facts))
        if said.finding == "not_started":
            assert now == was
        if said.finding == "completed":
            assert now == world(by.join(commands))


@BOUND
@given(COMMANDS, COMMANDS, st.sampled_from([(), (0,), (1,), (0, 1), (1, 0)]), st.booleans())
def test_two_calls_at_once(one: str, other: str, ran: tuple[int, ...], later: bool) -> None:
    """`later`: the second one began when the first had been let go on."""
    both = (one, other)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "shop"
        shop(top)
        calls, effect = [shell(c) for c in both], [False, False]
        facts = [c.facts(top) for c in calls]
        for n in ran:
            if later and n == 1:
                facts[1] = calls[1].facts(top)
            was = snapshot(top, times=False)
            bash(both[n], top)
            effect[n] = snapshot(top, times=False) != was
        now = snapshot(top, times=False)
        for n, said in enumerate(assessed(top, *zip(calls, facts, strict=True))):
            mine, its = both[n], both[1 - n]
            if said.finding == "not_started":
                assert not effect[n]
            if said.finding == "completed" and n not in ran:  # then all is as if it had run
                assert now in (world(mine), world(mine, its), world(its, mine))
