"""What probe.attach adds to a training step, as a ratio to the step without it: python tests/bench/bench_attach.py

A random model of 4 layers with hidden size 256, all seven projections of a layer in the directions (four each), four
samples of 256 tokens. The forward, the backward and an AdamW step; a ratio is of CPU seconds.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from timing import interleaved, is_quick, show
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

import probe
from extraction.adapters.frames import svd_frames
from extraction.directions import Directions

sys.path.append(str(Path(__file__).parents[1] / "support"))
from adapted import random_directions  # noqa: E402

SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIG = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=64, vocab_size=1024)
KINDS: dict[str, tuple[str | list[str] | None, bool]] = {  # {name: (what LoRA trains or None, is the step projected)}
    "LoRA of q and v, taps": (["q_proj", "v_proj"], False),
    "LoRA of all Linears, taps": ("all-linear", False),
    "LoRA of all Linears, projected": ("all-linear", True),
    "all weights, W.grad": (None, False),
    "all weights, projected": (None, True),
}


def step(
    model: nn.Module, ids: torch.Tensor, directions: Directions | None = None, project: bool = False
) -> Callable[[], None]:
    """A call that makes a step, measured along the directions if there are any."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    attached = directions and probe.attach(optimizer, directions, model=model, project=project, cache_dir=None)

    def run() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert attached is None or attached.records[-1].cos_in is not None

    return run


def main() -> None:
    """Print a line for every kind of model."""
    tokens, repeats = (16, 1) if is_quick(__doc__) else (256, 5)
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(CONFIG)
    directions = random_directions(svd_frames(copy.deepcopy(plain), model_id="random", cache_dir=None), k=4)
    ids = torch.randint(CONFIG.vocab_size, (4, tokens))
    print("a training step with probe.attach")
    for name, (targets, project) in KINDS.items():
        # Models of their own: a probe takes no number from a model that another optimizer steps.
        models = [copy.deepcopy(plain) for _ in range(2)]
        if targets is not None:
            config = LoraConfig(task_type="CAUSAL_LM", target_modules=targets)
            models = [get_peft_model(model, config) for model in models]
        ways = {"alone": step(models[0], ids), "attached": step(models[1], ids, directions, project)}
        cpu = {way: taken.cpu for way, taken in interleaved(ways, repeats).items()}
        show(name, ratio=cpu["attached"] / cpu["alone"], **cpu)


if __name__ == "__main__":
    main()
