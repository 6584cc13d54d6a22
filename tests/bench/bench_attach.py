"""What probe.attach adds to a training step, as ratios to the step without it, side by side:

    python tests/bench/bench_attach.py [--tokens 256] [--samples 4] [--repeats 5]

A random model of 4 layers with hidden size 256, all seven projections of a layer in the directions (four each). The
forward, the backward and an AdamW step; a ratio is of CPU seconds.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from timing import interleaved
from torch import nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import probe
from extraction.adapters.frames import svd_frames
from extraction.directions import Directions

sys.path.append(str(Path(__file__).parents[1] / "support"))
from haar import random_directions  # noqa: E402

SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIG = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=64, vocab_size=1024)


def attaching(tokens: int = 256, samples: int = 4, repeats: int = 5) -> None:
    """Prints a line for every kind of model."""
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(CONFIG)
    ids = torch.randint(CONFIG.vocab_size, (samples, tokens))
    print(f"probe.attach, {samples} samples of {tokens} tokens:")
    for name, steps in ways(plain, ids):
        taken = interleaved(steps, repeats)
        alone, attached = taken["alone"].cpu, taken["attached"].cpu
        print(f"  {name}: {attached / alone:.2f} times a step without it ({attached:.2f} s, {alone:.2f} s)")


def ways(plain: PreTrainedModel, ids: torch.Tensor) -> Iterator[tuple[str, dict[str, Callable[[], None]]]]:
    """Every kind of model, and a step of it `alone` and `attached`."""
    frames = svd_frames(copy.deepcopy(plain), model_id="random", cache_dir=None)
    directions = random_directions(frames, k=4)
    lora = get_peft_model(copy.deepcopy(plain), LoraConfig(task_type="CAUSAL_LM"))
    of_all = get_peft_model(copy.deepcopy(plain), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    kinds: dict[str, tuple[nn.Module, bool]] = {
        "LoRA of q and v, taps": (lora, False),
        "LoRA of all Linears, taps": (of_all, False),
        "LoRA of all Linears, projected": (of_all, True),
        "all weights, W.grad": (plain, False),
        "all weights, projected": (plain, True),
    }
    for name, (model, project) in kinds.items():
        # Models of their own: a probe takes no number from a model that another optimizer steps.
        yield name, {"alone": step(copy.deepcopy(model), ids), "attached": step(model, ids, directions, project)}


def step(
    model: nn.Module, ids: torch.Tensor, directions: Directions | None = None, project: bool = False
) -> Callable[[], None]:
    """A call that makes a step, on a probe that it attaches at its first call and leaves before it returns."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    handle = None
    if directions is not None:
        handle = probe.attach(optimizer, directions, model=model, project=project, cache_dir=None)
        handle._probe.stop()

    def run() -> None:
        if handle is not None:
            handle._probe.start(optimizer)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle._probe.stop()
            assert handle._probe.records[-1].cos_in is not None

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, default in {"tokens": 256, "samples": 4, "repeats": 5}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    attaching(**vars(parser.parse_args()))
