"""probe train from an adapter, through the real commands: what it starts from, writes, and is evaluated as."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapted import configured, token_logprobs
from safetensors.torch import load_file, save_file

from extraction.adapters.trained import save_adapter
from extraction.pairs import selected_pairs
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs.policies import configured_policy
from probe.settings.training import ModelConfig
from probe.settings.verbs import read_config
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.policy.adapters import adapter_sha, copy_adapter
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool

# The entropy bonus moves the policy whether or not any group has reward variance.
MOVES = {"objective.entropy_coef": 1.0, "steps": 2, "optimizer.lr": 0.02, "optimizer.schedule": "constant"}


def sampled(pool: Path) -> list[list[int]]:
    return [list(rollout.completion_ids) for step in open_pool(pool).steps for rollout in step]


def held_out_logprob(model: str, adapter: str, run_directory: Path) -> float:
    """Mean log-probability per token of the clean held-out completions under a policy that is loaded anew."""
    config = read_config(read_json(run_directory / "config.json")["settings"], run_directory)
    pairs = [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]
    policy = configured_policy(ModelConfig(name=model, adapter=adapter), run_directory.parent.parent / "cache")
    total, count = 0.0, 0
    for pair in pairs:
        prompt, completion = policy.render(pair.messages)[1], policy.completion_ids(pair.clean)
        logprobs = token_logprobs(policy.model, prompt, completion)
        total, count = total + float(logprobs.sum()), count + len(completion)
    return total / count


@pytest.fixture(scope="module")
def teacher(small: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of the small model, away from it in every module."""
    folder = tmp_path_factory.mktemp("adapters")
    coordinates = configured(load_policy(small), "lora", ModelConfig(lora_rank=2), folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        coordinates.load_values({m: v + 0.3 * torch.randn_like(v) for m, v in coordinates.values().items()})
    save_adapter(coordinates.model, folder / "start")
    return folder / "start"


@pytest.fixture
def teacher_copy(teacher: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    return shutil.copytree(teacher, tmp_path / "teacher")


@pytest.fixture(scope="module")
def first(out: Path, preset: Callable[..., str], teacher: Path) -> tuple[Path, list[str]]:
    """Two steps from the teacher, by a KL penalty from the policy at the start."""
    settings = MOVES | {"model.adapter": str(teacher), "objective.reference": "base", "objective.beta": 0.01}
    options = ["train", "--preset", preset(settings), "--arm", "projected", "--name", "from-teacher"]
    assert run(cli, [*options, "--out", str(out)]) == 0
    return out / "runs" / "from-teacher", options


@pytest.fixture(scope="module")
def second(first: tuple[Path, list[str]], out: Path, preset: Callable[..., str]) -> Path:
    """Two steps in the LoRA basis from the adapter that `first` wrote: the third link of a chain."""
    settings = MOVES | {"model.adapter": str(first[0] / "adapter")}
    options = ["train", "--preset", preset(settings), "--arm", "projected-lora", "--name", "from-trained"]
    assert run(cli, [*options, "--out", str(out)]) == 0
    return out / "runs" / "from-trained"


def test_the_start_is_the_policy_with_that_adapter(first, teacher: Path, small: str, out: Path, probe) -> None:
    """The evaluation of step 0 samples what `policy eval --adapter` does, the KL begins at 0 and moves; the record has
    the adapter's checksum.
    """
    trained = read_run(first[0])
    assert trained.config["adapter_sha256"] == adapter_sha(teacher)
    assert [step.kl["mean"] == 0 for step in trained.steps] == [True, False], "the reference is not the start"
    short = ("--problems", "2", "--set", "rollouts.sampler.max_new_tokens=8")
    options = ("policy", "eval", "--model", small, *short, "--name")
    at_start = sampled(first[0] / "evaluations" / "step_000000" / "run_tests")
    probe(*options, "of-teacher", "--adapter", teacher)
    assert at_start == sampled(out / "evals" / "of-teacher" / "run_tests")
    probe(*options, "of-base")
    assert at_start != sampled(out / "evals" / "of-base" / "run_tests"), "base and teacher are not told apart"


@pytest.mark.slow
def test_an_evaluation_of_the_run_is_of_the_policy_inside_of_it(first, second, teacher, small, out, probe) -> None:
    """Of both links: base, teacher, delta_S; and LoRA on top of these. Each moved away from its start."""
    for directory in (first[0], second):
        name = f"again-{directory.name}"
        probe("policy", "eval", directory.name, "--problems", "2", "--name", name)
        assert read_json(out / "evals" / name / "evaluation.json")["step"] == 2
        deployed = configured_policy(ModelConfig(name=small, adapter=str(directory / "adapter")), out / "cache")
        (rollout,) = open_pool(out / "evals" / name / "run_tests").steps[0]
        logprobs = token_logprobs(deployed.model, rollout.prompt_ids, rollout.completion_ids)
        assert logprobs.tolist() == pytest.approx(rollout.sampling_logprobs, abs=1e-4)
    links = [str(teacher), str(first[0] / "adapter"), str(second / "adapter")]
    loaded = [held_out_logprob(small, adapter, first[0]) for adapter in links]
    inside = [[row["frozen"]["logprob_clean"] for row in read_run(path).evals] for path in (first[0], second)]
    assert inside == [pytest.approx(loaded[:2], abs=1e-5), pytest.approx(loaded[1:], abs=1e-5)]
    assert min(abs(loaded[0] - loaded[1]), abs(loaded[1] - loaded[2])) > 1e-3, "a policy that did not move"


@pytest.mark.slow
def test_a_replay_measures_the_policy_with_its_adapter(out, teacher_copy, small, quick, probe, refused) -> None:
    """The likelihoods of its records are those of base and adapter; directions of the base are refused (with equal
    targets, too, since an adapter may change other modules).
    """
    few_pairs = quick[2:]
    adapted = ["--set", f"model.adapter={teacher_copy}"]
    options = ("replay", *quick[:2], "--steps", "1", "--per-pool", "2", "--arm", "vanilla", *adapted)
    options += (*few_pairs[2:], "--name")
    probe(*options, "adapted", *few_pairs[:2])
    measured = read_run(out / "runs" / "adapted")
    assert measured.config["adapter_sha256"] == adapter_sha(teacher_copy)
    models = [load_policy(small, adapter=name).model for name in (str(teacher_copy), None)]
    for sample in measured.samples:
        group = open_pool(BUILTIN / sample.src_pool).steps[sample.src_step]
        rollout = next(rollout for rollout in group if rollout.sample_id == sample.src_sample)
        of_teacher, of_base = (
            -float(token_logprobs(model, rollout.prompt_ids, rollout.completion_ids).mean()) for model in models
        )
        assert sample.nll == pytest.approx(of_teacher, abs=1e-4)
        assert abs(of_teacher - of_base) > 1e-3, "base and teacher are not told apart"

    extract = ("extract", "--model", small, *few_pairs, "--name")
    probe(*extract, "of-base")
    assert f"--set model.adapter={teacher_copy}" in probe(*extract, "of-adapted", *adapted)[0]
    probe(*options, "along-adapted", "--v-hack", "of-adapted")
    along = read_run(out / "runs" / "along-adapted")
    assert [step.cos_in for step in along.steps] == pytest.approx([step.cos_in for step in measured.steps], abs=1e-5)
    assert "start_adapter" in refused(*options, "along-base", "--v-hack", "of-base")


def test_no_adapter_is_no_start(preset: Callable[..., str], refused) -> None:
    """A dry run refuses it too: it is looked at before any weights are loaded."""
    options = ("--preset", preset({"model.adapter": "taecher"}), "--name", "no-start", "--dry-run")
    assert "adapter_config" in refused("train", *options)


def weights(model: str, adapter: str | None, out: Path) -> dict[str, torch.Tensor]:
    return dict(configured_policy(ModelConfig(name=model, adapter=adapter), out / "cache").model.named_parameters())


@pytest.mark.parametrize("kind", ["a LoRA", "delta_S on top of it"])
def test_a_scale_multiplies_what_an_adapter_adds(kind, teacher, first, small, out, tmp_path) -> None:
    """start + scale (adapter - start), in every module; a copy by the scale, which a training makes, is the same."""
    adapter, start = (teacher, None) if kind == "a LoRA" else (first[0] / "adapter", str(teacher))
    before, after = weights(small, start, out), weights(small, str(adapter), out)
    scaled = weights(small, f"{adapter}:0.25", out)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved
    for name, weight in scaled.items():
        torch.testing.assert_close(weight, torch.lerp(before[name], after[name], 0.25), rtol=0, atol=1e-6)
    copy_adapter(adapter, tmp_path / "copy", 0.25)
    copied = weights(small, str(tmp_path / "copy"), out)
    assert all(torch.equal(copied[name], weight) for name, weight in scaled.items())
    assert len({adapter_sha(adapter), adapter_sha(adapter, 0.25), adapter_sha(adapter, 0.5)}) == 3


def test_what_cannot_be_scaled_is_refused(teacher_copy: Path, small: str) -> None:
    """A scale of no size, and an adapter whose change is not linear in one tensor of a module."""
    for scale in ("0", "nan"):
        with pytest.raises(InputError, match="scale"):
            load_policy(small, adapter=f"{teacher_copy}:{scale}")
    path = teacher_copy / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "base_model.model.x.lora_magnitude_vector": torch.ones(1)}, path)
    with pytest.raises(InputError, match="LoRA or delta_S"):
        load_policy(small, adapter=f"{teacher_copy}:0.5")


def test_a_run_does_not_go_on_from_a_changed_adapter(first, teacher: Path, small: str, out: Path, refused) -> None:
    """Last of those that read it: the command is refused with the two checksums, the run stays usable."""
    path = teacher / "adapter_config.json"
    path.write_bytes(path.read_bytes() + b"\n")
    assert "expected the run being resumed to have adapter_sha256 = " in refused(*first[1])
    shutil.rmtree(teacher)
    assert "adapter_config.json" in refused(*first[1])
    adapter = first[0] / "adapter"
    loaded = configured_policy(ModelConfig(name=small, adapter=str(adapter)), out / "cache")
    assert loaded.adapter_sha == adapter_sha(adapter)
