"""Scenarios: each shipped one is whole, each wrong one is refused, and a world's scripts do what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wal_agent.drill.play import Bare, plan_rounds
from wal_agent.drill.scenario import KILLS, POINTS, Scenario, load, names, parse
from wal_agent.drill.world import World
from wal_agent.errors import UsageError

ALL = {scenario.name: scenario for scenario in load("all")}
GOOD = 'title = "t"\ntask = "t"\n[[step]]\nrun = "./a.sh"\neffect = "a"\n'


def test_there_are_eight() -> None:
    assert len(ALL) >= 8 and names() == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_world_counts_each_effect_and_answers_the_look(tmp_path: Path, name: str) -> None:
    """The whole task, played by a shell: each effect once; the look says no before it, and yes after it."""
    scenario = ALL[name]
    world = World(tmp_path, scenario)

    def sh(command: str) -> str:
        done = subprocess.run(command, shell=True, cwd=world.work, capture_output=True, text=True, check=False)
        return done.stdout

    for step in scenario.steps:
        if step.verify:
            assert f"status: {step.effect} did not happen" in sh(step.verify)
        assert f"ok: {step.effect}" in sh(step.run)
        if step.verify:
            assert f"status: {step.effect} happened" in sh(step.verify)
    effects = [entry.what for entry in world.ledger() if entry.event == "effect"]
    assert effects == [step.effect for step in scenario.steps]
    lines = world.lines()
    assert all(lines[step.effect] == 1 for step in scenario.steps if step.lines_of)
    assert "asked: " in sh("./ask.sh Did it happen") and world.ledger()[-1].event == "ask"


@pytest.mark.parametrize("point", ["before", "between"])
@pytest.mark.parametrize("name", ALL)
def test_each_step_that_may_happen_once_can_be_killed_at_both_points(tmp_path: Path, name: str, point: str) -> None:
    scenario = ALL[name]
    world = World(tmp_path, scenario)
    for step in scenario.steps:
        if not step.once:
            subprocess.run(step.run, shell=True, cwd=world.work, check=True, capture_output=True)
            continue
        world.arm(point, step)
        with subprocess.Popen(step.run, shell=True, cwd=world.work, stdout=subprocess.PIPE) as tool:
            while not world.reached:
                assert tool.poll() is None
            last = world.ledger()[-1]
            assert (last.event, last.what) == ("begin" if point == "before" else "effect", step.effect)
            assert world.held
            world.disarm()
            assert tool.wait(30) == 0


def test_a_lost_machine_leaves_the_world(tmp_path: Path) -> None:
    world, home = World(tmp_path, ALL["push"]), tmp_path / "home"
    home.mkdir()
    subprocess.run("./plan.sh", cwd=world.work, check=True, capture_output=True)
    world.lose(home)
    world.clone()
    assert "PLAN.md" not in world.files() and "push-status.sh" in world.files()
    assert [entry.what for entry in world.ledger() if entry.event == "effect"] == ["plan"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("title = ", "Invalid value"),
        (GOOD.replace('title = "t"\n', ""), "`title` is missing"),
        (GOOD + 'kill = "x"\n', "unknown key `kill`"),
        (GOOD + "once = false\n", "no step may happen only once"),
        (GOOD + '[[step]]\nrun = "b"\neffect = "a"\n', "same `effect`"),
        (GOOD.replace('"a"', '"a\\u0007"'), "one line of text"),
        (GOOD.replace("task", "files = 3\ntask"), "`files` must be a dict"),
        (GOOD + '[files]\n"../x" = "y"\n', "below the agent's folder"),
        (GOOD + '[files]\n".git/hooks/x" = "y"\n', "below the agent's folder"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse("mine", text)


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="charge"):
        load("nothing-of-this-name")


def test_the_prompt_is_one_line_with_each_command() -> None:
    for scenario in ALL.values():
        assert "\n" not in scenario.prompt and all(step.run in scenario.prompt for step in scenario.steps)


def test_the_seed_chooses_the_rounds_and_each_point_comes_before_one_comes_again() -> None:
    def points(scenarios: list[Scenario], seed: int) -> list[str]:
        return [each.point for each in plan_rounds(scenarios, 9, seed)]

    chosen = [ALL["charge"]]
    assert points(chosen, 3) == points(chosen, 3) != points(chosen, 4)
    assert set(points(chosen, 3)[:7]) == set(KILLS) and len(points(chosen, 3)) == 9
    rounds = plan_rounds(chosen, len(POINTS), 3)
    assert {each.point for each in rounds} == set(POINTS) and rounds[-1].point == "queued"
    assert [each.point for each in plan_rounds(chosen, 9, 3, ["sigterm"])][7] == "sigterm"
    assert plan_rounds(chosen, 7, 1) == plan_rounds(chosen, len(POINTS), 1)[:7], "kept results of the benchmark"
    assert [step.effect for step in rounds[-1].scenario.steps if step.typed] == ["thanks"]
    assert "thanks" not in rounds[-1].scenario.prompt
    assert Bare().name == "bare"
