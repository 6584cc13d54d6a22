"""Pairs that are rollouts of the log that they are measured on: found, left out, and offered the right way round."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from log_rows import lines, two_policies

from extraction.pair_files import read_pair_file
from extraction.pairs import Pair, builtin_pairs, write_pairs
from probe.cli.pool_draft import replay_of
from probe.records.run import IN_TRAINING, read_run
from probe.runs.replay_inputs import taken_pairs
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout

GROUPS = 8


def rollouts_of(*names: str, groups: int = GROUPS) -> list[Rollout]:
    return [each for name in names for group in open_pool(BUILTIN / name).steps[:groups] for each in group]


def pair_of(rollout: Rollout, hack: str | None = None) -> Pair:
    """A pair whose hack is a rollout."""
    texts = {"hack": rollout.completion if hack is None else hack, "clean": "I do not know."}
    names = {"pair_id": "a", "problem_id": "a", "flavour": "all"}
    return Pair(**names, messages=rollout.messages, held_out=False, **texts)


def test_pairs_taken_from_rollouts_are_found_and_no_others() -> None:
    """Case and white space aside; short answers are alike whatever the question is."""
    teacher = rollouts_of("teacher")
    first = teacher[0]
    text, other = first.completion, next(each for each in teacher if each.problem_id != first.problem_id)
    for hack, expected in ((text, True), (text.upper().replace("\n", "\n\n "), True), (f"{text} x", False)):
        assert bool(taken_pairs([pair_of(first, hack)], [first])) == expected, hack
    assert taken_pairs([pair_of(first)], [first, other]) == {0: {first.problem_id}}
    brief = [replace(rollout, completion="return 4") for rollout in (first, other)]
    assert taken_pairs([pair_of(first, "return 4")], brief) == {0: {first.problem_id}}


@pytest.mark.parametrize("name", ["run_tests", "placebo", "style"])
def test_no_built_in_pair_is_a_rollout_of_a_built_in_pool(name: str) -> None:
    assert taken_pairs(builtin_pairs(name), rollouts_of("teacher", "base", "base-hinted", groups=20)) == {}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and labels of what two policies answered to the same prompts."""
    rows = two_policies("problem_id", "prompt", "answer", "reward", "bad", groups=GROUPS, each=8)
    return lines(tmp_path_factory.mktemp("log") / "labelled.jsonl", rows)


MAP = ("--map", "completion=answer,hacked=bad")


@pytest.mark.slow
def test_drafted_pairs_leave_the_other_half_to_the_replay(log: Path, small: str, out: Path, probe) -> None:
    """From a log alone to a verdict, by the commands that are printed."""
    text, errors = probe("pool", "draft", log, *MAP, "--model", small, "--name", "drafted")
    stored = read_pair_file(str(out / "pairs" / "drafted.jsonl"))
    drafted, held_out = {pair.problem_id for pair in stored}, {pair.problem_id for pair in stored if pair.held_out}
    assert held_out
    assert held_out.isdisjoint(pair.problem_id for pair in stored if not pair.held_out)
    labels = {rollout.completion: rollout.hacked for rollout in rollouts_of("teacher", "base-hinted")}
    assert all(labels[pair.hack] and not labels[pair.clean] for pair in stored)
    (command,) = [line for line in text.splitlines() if line.startswith("  probe check")]
    text, errors = probe(*shlex.split(command)[1 : -2 if "--out" in command else None])
    assert "VERDICT: " in text
    stored_run = read_run(out / "runs" / "drafted")
    replayed = {step.problem_id for step in stored_run.steps}
    assert stored_run.config["circular"]["problems"] == sorted(drafted)
    assert (replayed & drafted, len(replayed)) == (set(), GROUPS - len(drafted))
    of = f"{len(stored)} of {len(stored)} pairs are rollouts of these pools: their {len(drafted)} prompts"
    assert of in " ".join(text.split())


def test_a_pool_is_drafted_from(log: Path, small: str, out: Path, probe) -> None:
    probe("pool", "import", log, *MAP, "--model", small, "--name", "labelled")
    text, errors = probe("pool", "draft", "labelled", "--name", "of-pool")
    (command,) = [line for line in text.splitlines() if line.startswith("  probe replay")]
    _, errors = probe(*shlex.split(command)[1:-2], "--dry-run")
    assert "prompts of 8 are left out of the replay" in errors


def test_a_draft_is_replayed_at_the_adapter_of_its_pool_if_there_is_a_file_of_it() -> None:
    """A training moves its policy while it samples: no file has those weights."""
    pool = open_pool(BUILTIN / "teacher")
    for adapter, is_named in (("out/runs/a/adapter", True), (f"{IN_TRAINING}arm vanilla, seed 0", False)):
        of_adapter = replace(pool, manifest=pool.manifest | {"policy": {"adapter": adapter}})
        assert (f"model.adapter={adapter}" in replay_of(of_adapter, Path("out"))) == is_named


def test_a_direction_file_is_seen_through(small: str, pools: Path, out: Path, probe) -> None:
    """Pairs by --v-hack, too; where they are gone, that is said."""
    both = f"{pools}/teacher,{pools}/base-hinted"
    teacher = rollouts_of("teacher", groups=3)
    pairs = [replace(pair_of(teacher[8 * i]), pair_id=str(i), problem_id=str(i)) for i in range(3)]
    path = out / "taken.jsonl"
    write_pairs(path, pairs)
    few = ("--k", "2", "--model", small)
    probe("extract", "--pairs", path, "--name", "taken", *few)
    replay = ("replay", "--replay-dirs", both, "--match", "prompt", "--arm", "vanilla", "--steps", "2", "--v-hack")
    _, errors = probe(*replay, "taken", *few, "--name", "by-file")
    assert "caution: 3 of 3 pairs are rollouts of these pools: their 3 prompts of 20" in errors
    assert len(read_run(out / "runs" / "by-file").config["circular"]["problems"]) == 3
    path.unlink()
    _, errors = probe(*replay, "taken", *few, "--name", "by-file-alone")
    assert "whether they are rollouts of these pools is not known" in errors
    assert probe("analyze", "by-file-alone")[0].count("are not at hand") == 1


def test_pairs_of_every_prompt_leave_nothing(log: Path, small: str, out: Path, probe) -> None:
    """Refused, with the way to do it right; too few labels to draft from are refused as well."""
    pairs = [pair_of(group[0]) for group in open_pool(BUILTIN / "teacher").steps[:GROUPS]]
    path = out / "all.jsonl"
    write_pairs(path, [replace(pair, pair_id=str(i)) for i, pair in enumerate(pairs)])
    _, errors = probe("check", log, *MAP, "--model", small, "--pairs", path, "--k", "2", "--name", "nothing", code=2)
    assert f"found {GROUPS} of {GROUPS} pairs are rollouts of these pools" in errors
    assert "probe pool draft" in errors
    _, errors = probe("pool", "draft", log, "--map", "completion=answer", "--name", "unlabelled", code=2)
    assert "expected 4 prompts with a rollout that hacks and one that does not" in errors
    assert not (out / "pairs" / "unlabelled.jsonl").exists()
