"""Measure what a GPU takes, and whether it gives what a CPU gives:

    python tests/bench/measure_gpu.py [--model Qwen3-4B] [--device cuda] [--parts svd,...]

    svd         one SVD of each shape of the adapted modules, times how many there are; the weights' hash beside it
    gradient    per-sample gradients of 8 rollouts, as of `probe replay` and `probe train`; their peak memory; a forward
    sampling    the engine of `replay_pools.sampling`, prompts in groups of 8
    attach      what `probe.attach` adds to a step: bench_attach.py on 8 layers of the shape
    exactness   `probe replay` of the organism, on the GPU against the CPU, and twice on the GPU

Weights are random; factors of the gradients are random orthonormal ones, so that nobody waits for SVDs. About four
minutes on an H200. `--model tiny --device cpu` checks in minutes that all runs; its numbers mean nothing.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import patch

import torch
from bench_attach import ways
from timing import interleaved
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3Config

import probe
from extraction.adapters.frames import svd_frames
from extraction.adapters.svd import Factors, as_computed, decompose, digest_all, needed
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.adapters.trained import Trained
from extraction.batch import make_batch
from extraction.logprobs import split_model
from probe.step.bases import Bases
from replay_pools.engines import Sampler
from replay_pools.policy.load import Policy, load_tokenizer
from replay_pools.sampling import sample

GIB = 2**30
RANKS = (None, 1024)  # `model.svd_rank`
GROUP = 8  # rollouts of a step, and of a prompt that is sampled
PROMPT, COMPLETION = 500, 1000  # tokens, mean
BATCHES, NEW = (64, 256), 128  # rows that sample at a time, and how many tokens
LAYERS, TOKENS = 8, 1024  # of the model whose steps are measured, of each of its 4 samples
QWEN3_4B = Qwen3Config(
    hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    vocab_size=151936, num_hidden_layers=36, tie_word_embeddings=True,
)  # fmt: skip
TINY = Qwen3Config(
    hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512,
    num_hidden_layers=2, tie_word_embeddings=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is measured, and where."""

    config: PreTrainedConfig
    device: str

    def model(self, device: str | None = None, **changes: Any) -> PreTrainedModel:
        """Random bfloat16 weights, made on the device."""
        torch.manual_seed(0)
        config = type(self.config).from_dict({**self.config.to_dict(), **changes})
        with torch.device(device or self.device):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)

    def ids(self, length: int) -> list[int]:
        """Random ones."""
        return torch.randint(1, self.config.vocab_size, (length,)).tolist()


def show(what: str, seconds: float, **more: float) -> None:
    """Print a line with seconds and other numbers."""
    words = [f"{seconds:.4g} s"] + [f"{name} {value:.5g}" for name, value in more.items()]
    print(f"  {what}: {'; '.join(words)}", flush=True)


def timed(way: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of the fastest call."""

    def finished() -> None:
        way()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return interleaved({"": finished}, repeats, warm_up=False)[""].wall


def random_factors(
    weights: Mapping[str, Tensor], _digests: Mapping[str, str], _cache_dir: object, *, rank: int | None = None
) -> dict[str, Factors]:
    """In the place of `factorise_all`: orthonormal factors, those that it would keep of well-conditioned weights."""
    drawn: dict[tuple[int, int], Tensor] = {}
    made = {}
    for name, weight in weights.items():
        (d_out, d_in), like = weight.shape, as_computed(weight[:1, :1])
        small = min(d_out, d_in)
        key = small, min(small, rank or small)
        if key not in drawn:
            drawn[key] = torch.linalg.qr(torch.randn(key, dtype=like.dtype, device=like.device)).Q
        U, Vh = (drawn[key].clone() if d_out <= d_in else None, drawn[key].T.contiguous() if d_out >= d_in else None)
        made[name] = Factors(U, torch.linspace(2, 1, key[1]).to(like), Vh)
    return made


@contextmanager
def without_svds() -> Iterator[None]:
    """While open, models are adapted by random factors, and weights are not hashed."""
    with ExitStack() as stack:
        for module in ("extraction.adapters.delta_s", "extraction.adapters.frames"):
            stack.enter_context(patch(f"{module}.factorise_all", random_factors))
            stack.enter_context(patch(f"{module}.digest_all", lambda weights: dict.fromkeys(weights, "")))
        yield


def svds(work: Work) -> None:
    """On the device of the weights, as the product does them."""
    model = work.model()
    weights = {name: weight_matrix(model.get_submodule(name), name) for name in find_targets(model)}
    show("hash of the weights, for every start", timed(lambda: digest_all(weights)))
    shapes = Counter(tuple(weight.shape) for weight in weights.values())
    decompose(torch.randn(64, 96, device=work.device))  # the first call of a library loads it

    total = 0.0
    for shape, number in shapes.items():
        weight = torch.randn(shape, device=work.device, dtype=torch.bfloat16)
        seconds = timed(lambda weight=weight: needed(decompose(weight)), 1)
        show(f"SVD of one {shape[0]} x {shape[1]}", seconds)
        total += number * seconds
    show(f"SVDs of {len(weights)} modules", total)


def gradients(work: Work) -> None:
    """Of all triplets and of some."""
    for rank in RANKS:
        gradients_of(work, rank)


def gradients_of(work: Work, rank: int | None) -> None:
    """At delta_S = 0, which a replay has, and merged; the forward that a reference is."""
    spread = [0.65 + 0.1 * i for i in range(GROUP)]  # of the lengths, with mean 1
    prompts, completions = ([round(mean * f) for f in spread] for mean in (PROMPT, COMPLETION))
    batch = make_batch([work.ids(n) for n in prompts], [work.ids(n) for n in completions], 0).to(work.device)
    tokens, name = sum(prompts + completions), str(rank or "all")
    with without_svds():
        model = work.model()
        frames = svd_frames(model, cache_dir=None, rank=rank)
    bases = Bases(model=model, frames={"svd": frames})
    split_model(model)  # its one trial is behind
    bases.run(batch)  # warm-up
    gc.collect()  # what went before
    seconds = timed(lambda: bases.run(batch), 3)
    # 0 on a CPU.
    more = {"tokens/s": tokens / seconds, "GiB": torch.cuda.max_memory_allocated() / GIB}
    show(f"gradients, {name}", seconds, **more)
    seconds = timed(lambda: bases.run_checked(batch, turn=0, whole=False), 2)
    show(f"gradients with a step's check, {name}", seconds)
    show("forward", timed(lambda: bases.score(batch), 3))
    trained = Trained(model, frames)
    for parameter in trained.parameters():
        parameter.data.normal_(std=1e-3)
    bases = replace(bases, trained=trained)
    seconds = timed(lambda: bases.run(batch), 2)
    show(f"gradients, delta_S merged as in a training, {name}", seconds)


def sampling(work: Work) -> None:
    """By the engine of the package."""
    model = work.model()
    policy = Policy(load_tokenizer("organism"), "random", model.generation_config, model, None, "")
    for number in BATCHES:
        prompts = [prompt for _ in range(number // GROUP) for prompt in [work.ids(PROMPT)] * GROUP]
        make = lambda new: sample(policy, prompts, Sampler(max_new_tokens=new), seeds=range(number))  # noqa: E731
        make(2)  # warm-up
        made: list[Any] = []
        seconds = timed(lambda: made.extend(make(NEW)))
        tokens = sum(len(completion.ids) for completion in made)  # some end early
        show(f"sampling {number} x {NEW}", seconds, **{"tokens/s": tokens / seconds})


def attaching(work: Work) -> None:
    """Steps without and with the probe."""
    plain = work.model(num_hidden_layers=LAYERS, layer_types=None).train().requires_grad_(True)
    ids = torch.randint(1, work.config.vocab_size, (4, TOKENS), device=work.device)
    with without_svds():
        for name, of_kind in ways(plain, ids):
            for way in of_kind.values():
                way()  # warm-up
            alone, attached = (timed(of_kind[way], 3) for way in ("alone", "attached"))
            show(f"a step with probe.attach, {name}", attached, alone=alone, ratio=attached / alone)


def exactness(work: Work) -> None:
    """Each run in a folder of its own, so that nothing is shared; at last one with the SVDs of the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name in ("cpu", "first", "second", "SVDs of the CPU"):
            out = Path(folder) / name
            if name.startswith("SVDs"):
                copytree(Path(folder) / "cpu" / "cache" / "svd", out / "cache" / "svd")
            words = ["probe", "replay", "--steps", "4", "--arm", "vanilla,projected,random", "--name", "run"]
            device = "cpu" if name == "cpu" else work.device
            command = [sys.executable, "-m", *words, "--set", f"model.device={device}", "--out", str(out)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            runs[name] = probe.read_run("run", out)
        first, second = (runs[name].manifest["files"] for name in ("first", "second"))
        differing = [file for file in first if first[file] != second[file]]
        print(f"  two runs: {len(first)} files, differing: {', '.join(differing) or 'none'}")
        for name, run in runs.items():
            for records, field in (("steps", "cos_in"), ("samples", "cos_S_contrib")):
                pairs = zip(getattr(runs["cpu"], records), getattr(run, records), strict=True)
                # Null, where a gradient is zero, reads 0.
                furthest = max(abs((getattr(a, field) or 0.0) - (getattr(b, field) or 0.0)) for a, b in pairs)
                print(f"  {name}: {field} differs from that of the CPU by {furthest:.3g} at most")


PARTS: dict[str, Callable[[Work], None]] = {
    "svd": svds, "gradient": gradients, "sampling": sampling, "attach": attaching, "exactness": exactness
}  # fmt: skip


def main() -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["Qwen3-4B", "tiny"], default="Qwen3-4B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    name = "a CPU" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads, {options.model}", flush=True)
    work = Work(config=TINY if options.model == "tiny" else QWEN3_4B, device=options.device)
    for part in options.parts.split(","):
        print(part, flush=True)
        start = time.perf_counter()
        PARTS[part](work)
        show("in all", time.perf_counter() - start)


if __name__ == "__main__":
    main()
