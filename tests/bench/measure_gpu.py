"""Measure what a GPU takes, and whether it gives what a CPU gives: python tests/bench/measure_gpu.py

    svd         the SVDs of the adapted modules; the hash of their weights, which every start makes
    gradient    per-sample gradients of 8 rollouts, as of `probe replay` and `probe train`; their peak memory; a forward
    exactness   `probe replay` of the organism, on the GPU against the CPU, and twice on the GPU

Weights are random, of Qwen3-4B's shape in bfloat16. Minutes on an H200. `--quick`: a tiny shape, and no GPU.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from timing import interleaved, is_quick, show
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

import probe
from extraction.adapters.frames import Frames, svd_frames
from extraction.adapters.svd import digest_all
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.adapters.trained import Trained
from extraction.batch import make_batch
from probe.step.bases import Bases

SPREAD = [0.65 + 0.1 * i for i in range(8)]  # of the lengths of 8 rollouts, with mean 1
QWEN3_4B = Qwen3Config(
    hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    vocab_size=151936, num_hidden_layers=36, tie_word_embeddings=True,
)  # fmt: skip
TINY = Qwen3Config(
    hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512,
    num_hidden_layers=2, tie_word_embeddings=True,
)  # fmt: skip


def timed(what: str, way: Callable[[], object], repeats: int = 1, **more: float) -> None:
    """Show the seconds of the fastest call, and the most memory that any call took so far (0 on a CPU)."""

    def finished() -> None:
        way()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    seconds = interleaved({"": finished}, repeats, warm_up=False)[""].wall
    show(what, seconds=seconds, GiB=torch.cuda.max_memory_allocated() / 2**30, **more)


def svds(model: PreTrainedModel) -> Frames:
    """The frames of all modules, as the product makes them."""
    weights = {name: weight_matrix(model.get_submodule(name), name) for name in find_targets(model)}
    timed("hash of the weights", lambda: digest_all(weights))
    made: list[Frames] = []
    timed(f"SVDs of {len(weights)} modules, with the hash", lambda: made.append(svd_frames(model, cache_dir=None)))
    return made[0]


def gradients(model: PreTrainedModel, frames: Frames, prompt: int, completion: int) -> None:
    """At delta_S = 0, which a replay has, and merged; the forward that a reference is. Lengths are means, in tokens."""
    prompts, completions = (
        [torch.randint(1, model.config.vocab_size, (round(mean * share),)).tolist() for share in SPREAD]
        for mean in (prompt, completion)
    )
    batch = make_batch(prompts, completions, 0).to(model.device)
    bases = Bases(model=model, frames={"svd": frames})
    bases.run(batch)  # warm-up
    timed("gradients", lambda: bases.run(batch), 3, tokens=sum(map(len, prompts + completions)))
    timed("gradients with a step's check", lambda: bases.run_checked(batch, turn=0, whole=False), 2)
    timed("forward", lambda: bases.score(batch), 3)
    trained = Trained(model, frames)
    for parameter in trained.parameters():
        parameter.data.normal_(std=1e-3)
    moved = replace(bases, trained=trained)
    timed("gradients, delta_S merged as in a training", lambda: moved.run(batch), 2)


def exactness(device: str) -> None:
    """Each run in a folder of its own, so that nothing is shared."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name in ("cpu", "first", "second"):
            words = ["replay", "--steps", "4", "--arm", "vanilla,projected,random", "--name", "run"]
            words += ["--set", f"model.device={'cpu' if name == 'cpu' else device}", "--out", f"{folder}/{name}"]
            subprocess.run([sys.executable, "-m", "probe", *words], stdout=subprocess.DEVNULL, check=True)
            runs[name] = probe.read_run("run", Path(folder) / name)
        first, second = (runs[name].manifest["files"] for name in ("first", "second"))
        differing = [file for file in first if first[file] != second[file]]
        show("two runs", files=len(first), differing=", ".join(differing) or "none")
        for records, field in (("steps", "cos_in"), ("samples", "cos_S_contrib")):
            pairs = zip(getattr(runs["cpu"], records), getattr(runs["first"], records), strict=True)
            # Null, where a gradient is zero, reads 0.
            furthest = max(abs((getattr(a, field) or 0.0) - (getattr(b, field) or 0.0)) for a, b in pairs)
            show(field, furthest_from_the_CPU=furthest)


def main() -> None:
    """All three."""
    quick = is_quick(__doc__)
    config, device = (TINY, "cpu") if quick else (QWEN3_4B, "cuda")
    print("a CPU" if device == "cpu" else torch.cuda.get_device_name(device), f"torch {torch.__version__}", flush=True)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    gradients(model, svds(model), *((20, 40) if quick else (500, 1000)))
    exactness(device)


if __name__ == "__main__":
    main()
