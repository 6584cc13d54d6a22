"""The table of hours in spec/guide/processes.md: what replay, SVD and the training of phase 3 cost on a GPU.

    python tests/bench/cost_table.py [--gpu h100]

Counted on models without weights (`probe.runs.hours`). A replay is 40 steps of 8 rollouts, extraction 48 pairs.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from extraction.adapters.targets import find_targets, weight_matrix
from probe.experiments.load import load_spec
from probe.runs.footprint import memory
from probe.runs.hours import Flops, Rows, replay_hours, training_hours
from probe.runs.preview import num_evaluated, num_evaluations
from probe.settings.arms import get_arm
from probe.settings.machines import GIB, GPUS
from probe.settings.run import TrainConfig

SPEC = Path(__file__).parents[2] / "spec" / "phase3.toml"
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "num_hidden_layers": 36}
MODELS: dict[str, PreTrainedConfig] = {
    "Qwen3-4B": Qwen3Config(
        hidden_size=2560, intermediate_size=9728, num_attention_heads=32, tie_word_embeddings=True, **QWEN3
    ),
    "Qwen3-8B": Qwen3Config(hidden_size=4096, intermediate_size=12288, num_attention_heads=32, **QWEN3),
    "Llama-3.3-70B": LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
}
PROMPT = 500  # tokens of a LeetCode problem: assumed
REPLAY = [Rows(number=8, prompt=PROMPT, completion=1000)] * 40
PAIRS = [Rows(number=96, prompt=PROMPT, completion=250)]
RANKS = (None, 1024, 256)
RUNS = 9  # 3 seeds x 3 arms


def main() -> None:
    """Print a row for every model and rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=GPUS, default="h100")
    machine = GPUS[parser.parse_args().gpu]
    config = load_spec(SPEC).resolved["gradient"].config
    assert isinstance(config, TrainConfig)
    print(f"{machine.source}; steps of 8 rollouts, {PROMPT} + 1000 tokens\n")
    print(
        "| model, `svd_rank` | weights, GiB | factors, GiB | both frames, GiB | SVDs, h | pairs, h | replay, h "
        f"| a training, h | sampling in it | {RUNS} trainings, h |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    number = config.rollouts.prompts_per_step * config.rollouts.group
    step = Rows(number=number, prompt=PROMPT, completion=config.rollouts.sampler.max_new_tokens)
    evaluated = replace(step, number=num_evaluations(config) * num_evaluated(config))
    for name, shape in MODELS.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
        for rank in RANKS:
            settings = replace(config.model, svd_rank=rank)
            sizes = memory(model, settings, arms=[get_arm("projected")], num_samples=8, k=4, num_pairs=48)
            weights, factors = [size / GIB for size in sizes.values()][:2]
            shapes = [weight_matrix(model.get_submodule(m), m).shape for m in find_targets(model, settings.targets)]
            frames = 4 * sum(min(*shape, rank or min(shape)) * sum(shape) for shape in shapes) / GIB
            cost = Flops(model, settings, ("svd",))
            svd, pairs, steps = replay_hours(cost, machine, steps=REPLAY, pairs=PAIRS).values()
            training = training_hours(
                cost, machine, steps=config.steps, step=step, pairs=PAIRS, references=1, evaluated=evaluated
            )
            hours = sum(training.values()) - svd
            cells = [f"{number:.3g}" for number in (weights, factors, frames, svd, pairs, steps, hours)]
            share = (training["sampling"] + training["evaluations"]) / hours
            print(f"| {name}, {rank or 'all'} | {' | '.join(cells)} | {share:.0%} | {RUNS * hours + svd:.3g} |")


if __name__ == "__main__":
    main()
