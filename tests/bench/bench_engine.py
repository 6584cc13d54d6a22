"""The per-sample gradient engine against its limit and against other ways to the same gradients, side by side.

A SmolLM2-135M-shaped model with random weights, 8 ragged rollouts (prompts 200-350 tokens, completions 100-300),
float32.

    limit      packed rows, frozen forward and backward down to the embeddings, nothing per sample
    svd, lora  per_sample_gradients in either basis (LoRA rank 32)
    loop       what the engine replaces: a backward for each sample through y = W x + U diag(delta_S) Vh x, the
               difference of `.grad` before and after; again for every (arm x condition) cell
    vmap       torch.func.vmap(grad) of the same adapter, padded rows

Times are medians of interleaved runs, wall and CPU seconds; read the ratios. Targets are judged by CPU seconds, which
other processes on the machine do not enter. The engine is given one pass, as the limit has. Peak memory is that of a
process which does one of these and nothing else. `python tests/bench/bench_engine.py --help` lists the options.
"""

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from extraction.adapters import Coordinates, attach
from extraction.adapters.singular import DeltaSCoordinates
from extraction.attention import attending
from extraction.batch import Batch, make_batch
from extraction.gradients import frozen, one_pass, per_sample_gradients, require_grad
from extraction.logprobs import CHUNK_SIZE, completion_logprobs, split_model
from extraction.rows import make_rows
from probe.projection import project_modules

OUT = Path("out/bench")
VOCABULARY = 49152
PROMPTS = (200, 221, 243, 264, 286, 307, 329, 350)
COMPLETIONS = (300, 100, 157, 271, 128, 214, 243, 186)
CELLS = (1, 3, 12)
ONE_PASS = 8192  # tokens_per_batch: all of the rollouts
TARGETS = {
    "svd / limit": ("<=", 1.30),
    "lora / limit": ("<=", 1.12),
    "loop / svd, 1 cell": (">=", 1.6),
    "loop / svd, 12 cells": (">=", 15.0),
    "vmap / svd": (">=", 1.3),
    "peak svd / peak limit": ("<=", 1.25),
    "peak lora / peak limit": ("<=", 1.25),
    "exponent in rollouts": ("<=", 1.05),
    "exponent in tokens": ("<=", 1.05),
}


def model_of_shape(layers: int) -> LlamaForCausalLM:
    """SmolLM2-135M's shape, random weights from a fixed seed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def adapted(basis: str, layers: int) -> Coordinates:
    """The model in one basis, at zero."""
    options = {"rank": 32, "train_a": False} if basis == "lora" else {"cache_dir": OUT / "svd"}
    return attach(model_of_shape(layers), basis=basis, model_id="bench", **options)


def rollouts(prompts: Sequence[int] = PROMPTS, completions: Sequence[int] = COMPLETIONS) -> Batch:
    """Random ids of the given lengths."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(VOCABULARY, (n,), generator=generator).tolist()  # noqa: E731
    return make_batch([draw(n) for n in prompts], [draw(n) for n in completions], 0)


def engine(coordinates: Coordinates, batch: Batch) -> dict[str, torch.Tensor]:
    """The engine, in one pass."""
    return per_sample_gradients(coordinates, batch, tokens_per_batch=ONE_PASS).gradients


def limit(coordinates: Coordinates, batch: Batch) -> None:
    """The frozen forward and backward that any exact way must at least do."""
    backbone, _ = split_model(coordinates.model)
    handle = coordinates.model.get_input_embeddings().register_forward_hook(require_grad)
    try:
        with frozen(coordinates.model), coordinates.lean_forward(), attending(backbone, "packed"):
            rows = make_rows(batch, "packed")
            one_pass(coordinates, rows, torch.ones(len(rows.targets)), CHUNK_SIZE)
    finally:
        handle.remove()


class TwoProducts(nn.Module):
    """y = W x + U diag(delta_S) Vh x as the reference line writes it."""

    def __init__(self, base: nn.Module, U: torch.Tensor, Vh: torch.Tensor) -> None:
        super().__init__()
        self.base, self.U, self.Vh = base, U, Vh
        self.delta_S = nn.Parameter(torch.zeros(len(Vh)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Three products a token."""
        return self.base(x) + F.linear(F.linear(x, self.Vh) * self.delta_S, self.U)


def reference_model(layers: int) -> LlamaForCausalLM:
    """The model with `TwoProducts` in the place of every target."""
    coordinates = adapted("svd", layers)
    assert isinstance(coordinates, DeltaSCoordinates)
    model = model_of_shape(layers)
    for module in coordinates.sizes:
        parent, _, name = module.rpartition(".")
        frames = coordinates.layer(module).frames()
        setattr(model.get_submodule(parent), name, TwoProducts(model.get_submodule(module), *frames))
    return model


def loop(model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """Each sample's gradient as the difference of accumulated `.grad`s."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    found = []
    for i in range(len(batch)):
        before = torch.cat([parameter.grad for parameter in parameters])
        (-completion_logprobs(model, make_rows(batch, "padded", [i])).sum()).backward()
        found.append(torch.cat([parameter.grad for parameter in parameters]) - before)
    return found


def vmapped(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """torch.func over padded rows; a causal model needs no mask against padding on the right."""
    values = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(values: dict[str, torch.Tensor], ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        call = {"input_ids": ids[None], "use_cache": False}
        logits = torch.func.functional_call(model, values, kwargs=call).logits[0, :-1]
        logprobs = logits.log_softmax(1).gather(1, ids[1:, None]).squeeze(1)
        return -(logprobs * mask[1:]).sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(values, batch.ids, batch.completion_mask)


def cells(coordinates: Coordinates, batch: Batch, count: int) -> None:
    """`count` (arm x condition) cells from one pass: weighted sums and projections on 4 directions a module."""
    unit = engine(coordinates, batch)
    generator = torch.Generator().manual_seed(2)
    vectors = {m: torch.linalg.qr(torch.randn(r, 4, generator=generator))[0].T for m, r in coordinates.sizes.items()}
    for advantages in torch.randn(count, len(batch), generator=generator):
        project_modules({m: advantages @ g for m, g in unit.items()}, vectors, gate="one_sided")


def interleaved(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of each way, run in turn after one warm-up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            if turn:
                found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
            gc.collect()
    return {name: dict(zip(("wall", "cpu"), map(statistics.median, zip(*t)))) for name, t in found.items()}


def exponents(layers: int, repeats: int) -> dict[str, float]:
    """Slopes of log CPU time against log size: rollouts of 300 + 150 tokens, and tokens of each of 4 rollouts.

    The slope of the limit stands beside: attention is quadratic in the tokens of a rollout, whoever computes gradients.
    """
    coordinates = adapted("svd", layers)
    sizes = {
        "rollouts": {n: rollouts([300] * n, [150] * n) for n in (2, 4, 8, 16)},
        "tokens": {n: rollouts([2 * n // 3] * 4, [n - 2 * n // 3] * 4) for n in (150, 300, 600, 1200)},
    }
    found = {}
    for what, batches in sizes.items():
        for way, function in {"exponent": engine, "limit's exponent": limit}.items():
            ways = {str(n): partial(function, coordinates, batch) for n, batch in batches.items()}
            points = [(math.log(int(n)), math.log(t["cpu"])) for n, t in interleaved(ways, repeats).items()]
            found[f"{way} in {what}"] = statistics.linear_regression(*zip(*points)).slope
    return found


def peak_of(way: str, layers: int) -> float:
    """MB at the peak of a process that runs one way, once."""
    command = [sys.executable, __file__, "--peak", way, "--layers", str(layers)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak(way: str, layers: int) -> None:
    """The inside of `peak_of`. (ru_maxrss would begin with the parent's.)"""
    batch = rollouts()
    if way == "loop":
        loop(reference_model(layers), batch)
    elif way == "limit":
        limit(adapted("lora", layers), batch)
    else:
        engine(adapted(way, layers), batch)
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(int(line.split()[1]) / 1024)


def engine_times(layers: int, repeats: int) -> dict[str, dict[str, float]]:
    """The engine in both bases, with many cells, its limit, and the loop."""
    svd, lora, reference, batch = adapted("svd", layers), adapted("lora", layers), reference_model(layers), rollouts()
    return interleaved(
        {
            "limit": lambda: limit(svd, batch),
            "svd": lambda: engine(svd, batch),
            "lora": lambda: engine(lora, batch),
            "loop": lambda: loop(reference, batch),
            **{f"svd, {n} cells": (lambda n=n: cells(svd, batch, n)) for n in CELLS[1:]},
        },
        repeats,
    )


def vmap_times(layers: int, repeats: int) -> dict[str, dict[str, float]]:
    """The engine and vmap(grad), which needs the memory of all samples' logits at once."""
    svd, reference, batch = adapted("svd", layers), reference_model(layers), rollouts()
    return interleaved({"svd": lambda: engine(svd, batch), "vmap": lambda: vmapped(reference, batch)}, repeats)


def ratio(above: dict[str, float], below: dict[str, float], times: int = 1) -> dict[str, float]:
    """Key by key."""
    return {kind: times * above[kind] / below[kind] for kind in above}


def measure(layers: int, small: int, repeats: int) -> dict:
    """Everything, as one record."""
    times, beside_vmap = engine_times(layers, repeats), vmap_times(small, repeats)
    peaks = {way: {"memory": peak_of(way, layers)} for way in ("limit", "svd", "lora", "loop")}
    ratios = {f"{basis} / limit": ratio(times[basis], times["limit"]) for basis in ("svd", "lora")}
    ratios["loop / svd, 1 cell"] = ratio(times["loop"], times["svd"])
    for n in CELLS[1:]:
        ratios[f"loop / svd, {n} cells"] = ratio(times["loop"], times[f"svd, {n} cells"], n)
    ratios["vmap / svd"] = ratio(beside_vmap["vmap"], beside_vmap["svd"])
    for basis in ("svd", "lora"):
        ratios[f"peak {basis} / peak limit"] = ratio(peaks[basis], peaks["limit"])
    ratios |= {name: {"cpu": slope} for name, slope in exponents(small, repeats).items()}
    return {"seconds": times, "seconds_small_model": beside_vmap, "peak_mb": peaks, "ratios": ratios}


def show(record: dict) -> None:
    """The table: every ratio with its target."""
    print("torch {torch}, {threads} thread(s), {layers} layers, {tokens} tokens".format(**record))
    print("medians of {repeats} interleaved runs; vmap and exponents: {small_layers} layers".format(**record))
    print("n cells of the loop are n of the measured loop")
    for way, seconds in record["seconds"].items():
        print(f"  {way:<24} {seconds['wall']:8.2f} s wall {seconds['cpu']:8.2f} s CPU")
    for way, peak in record["peak_mb"].items():
        print(f"  peak of {way:<16} {peak['memory']:8.0f} MB")
    for name, found in record["ratios"].items():
        numbers = "  ".join(f"{kind} {number:6.2f}" for kind, number in found.items())
        print(f"  {name:<28} {numbers:<28} {verdict(name, list(found.values())[-1])}")


def verdict(name: str, value: float) -> str:
    """The target of a ratio, and whether it is met."""
    if name not in TARGETS:
        return ""
    sign, target = TARGETS[name]
    met = value <= target if sign == "<=" else value >= target
    return f"target {sign} {target:<6} {'met' if met else 'MISSED'}"


def main() -> None:
    """Measure, show, and write `out/bench/engine.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30, help="of the model (SmolLM2-135M has 30)")
    parser.add_argument("--small", type=int, default=4, help="layers where vmap and the exponents are measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak, options.layers)
        return
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "repeats": options.repeats}
    facts |= {"layers": options.layers, "small_layers": options.small, "tokens": sum(PROMPTS) + sum(COMPLETIONS)}
    record = facts | measure(options.layers, options.small, options.repeats)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "engine.json").write_text(json.dumps(record, indent=1) + "\n")
    show(record)


if __name__ == "__main__":
    main()
