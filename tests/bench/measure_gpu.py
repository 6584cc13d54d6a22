"""What cost_table.py counts, beside what a GPU takes; and whether a GPU gives what a CPU gives:

    python tests/bench/measure_gpu.py [--model Qwen3-4B] [--device cuda] [--json PATH] [--parts svd,...]

    svd         one SVD of each shape of the adapted modules, times how many there are; the weights' hash beside it
    gradient    per-sample gradients of 8 rollouts, as of `probe replay` and `probe train`; their peak memory; a forward
    sampling    the engine of `replay_pools.sampling`, prompts in groups of 8
    attach      what `probe.attach` adds to a step: bench_attach.py on a few layers of the shape
    exactness   `probe replay` of the organism, on the GPU against the CPU, and twice on the GPU
    drivers     one square SVD by other ways than the product's

Weights are random; factors of the gradients are random orthonormal ones, so that nobody waits for SVDs. Every number is
printed and written as it is measured. A part that fails or exceeds its limit is left, and the next one begins.
`--model tiny --device cpu` checks in a minute that all runs; its numbers mean nothing.
"""

import argparse
import gc
import gzip
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import patch

import torch
from bench_attach import ways
from cost_table import MODELS, RANKS
from timing import interleaved
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3Config

from extraction.adapters.coordinates import attach
from extraction.adapters.svd import BATCH, Factorised, Factors, as_computed, digest_all, is_randomised, needed_factors
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.batch import make_batch
from extraction.logprobs import CHUNK_SIZE, split_model
from extraction.passes import activation_bytes, tokens_that_fit
from probe.runs.footprint import KERNELS, LOGITS, memory
from probe.runs.hours import Cost, Rows, this_cpu
from probe.settings.arms import get_arm
from probe.settings.machines import GIB, GPUS, UTILISATION, Machine
from probe.settings.training import ModelConfig
from probe.step.bases import Bases
from replay_pools.engines import Sampler
from replay_pools.policy.load import Policy, load_tokenizer
from replay_pools.sampling import sample

GROUP = 8  # rollouts of a step, and of a prompt that is sampled
TINY = Qwen3Config(
    hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512,
    num_hidden_layers=2, tie_word_embeddings=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is measured, and where."""

    config: PreTrainedConfig
    device: str
    machine: Machine
    add: Callable[..., None]  # `Results.add`
    ranks: Sequence[int | None] = RANKS
    prompt: int = 500  # tokens, mean
    completion: int = 1000
    batches: Sequence[int] = (64, 256)  # rows that sample at a time
    num_new: int = 128
    layers: int = 8  # of the model whose steps are measured
    tokens: int = 1024  # of each of its 4 samples
    steps: str = "4"  # of a replay

    def model(self, device: str | None = None, **changes: Any) -> PreTrainedModel:
        """Random bfloat16 weights, made on the device."""
        torch.manual_seed(0)
        config = type(self.config).from_dict({**self.config.to_dict(), **changes})
        with torch.device(device or self.device):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    def cost(self, rank: int | None) -> Cost:
        """What is counted."""
        return Cost(self.model("meta"), ModelConfig(dtype="bfloat16", svd_rank=rank), ("svd",))

    def ids(self, length: int) -> list[int]:
        """Random ones."""
        return torch.randint(1, self.config.vocab_size, (length,)).tolist()


class Results:
    """All numbers, printed and written as they come; of the last counted share what would have given the time."""

    def __init__(self, path: Path | None, facts: Mapping[str, Any]) -> None:
        self._path, self._found = path, {"facts": facts, "rows": []}
        print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)

    def add(self, what: str, seconds: float, counted: float | None = None, assumed: float = 0.0, **more: Any) -> None:
        """Seconds, measured and counted, with the share of the peak that was assumed (0: several shares)."""
        row = {"what": what, "seconds": seconds, "counted": counted, **more}
        words = [f"{seconds:.4g} s"]
        if counted is not None:
            words.append(f"counted {counted:.4g}: {seconds / counted:.3g} times that")
        if counted is not None and assumed:
            row |= {"share": assumed * counted / seconds, "assumed": assumed}
            words.append(f"share of the peak {row['share']:.3g} (assumed {assumed:g})")
        words += [
            f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}" for name, value in more.items()
        ]
        print(f"  {what}: {'; '.join(words)}", flush=True)
        self._found["rows"].append(row)
        if self._path is not None:
            self._path.write_text(json.dumps(self._found, indent=1) + "\n")


def sync() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(way: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of the fastest call."""
    taken = []
    for _ in range(repeats):
        sync()
        start = time.perf_counter()
        way()
        sync()
        taken.append(time.perf_counter() - start)
    return min(taken)


def random_factors(
    weights: Mapping[str, Tensor], _digests: Mapping[str, str], _cache_dir: object, *, rank: int | None = None
) -> dict[str, Factorised]:
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
        made[name] = Factorised(Factors(U, torch.linspace(2, 1, key[1]).to(like), Vh), None)
    return made


@contextmanager
def without_svds() -> Iterator[None]:
    """While open, models are adapted by random factors, and weights are not hashed."""
    with (
        patch("extraction.adapters.delta_s.factorise_all", random_factors),
        patch("extraction.adapters.frames.factorise_all", random_factors),
        patch("extraction.adapters.delta_s.digest_all", lambda weights: dict.fromkeys(weights, "")),
        patch("extraction.adapters.frames.digest_all", lambda weights: dict.fromkeys(weights, "")),
    ):
        yield


def svds(work: Work) -> None:
    """On the device of the weights, as the product does them."""
    model = work.model("meta")
    shapes = Counter(tuple(weight_matrix(model.get_submodule(m), m).shape) for m in find_targets(model))
    draw = lambda *shape: torch.randn(*shape, device=work.device, dtype=torch.bfloat16)  # noqa: E731
    for rank in (8, None):
        needed_factors([draw(64, 96)], rank)  # the first call of a library loads it
    known: dict[object, float] = {}
    # All triplets, which may exceed the limit, at last.
    for rank in sorted(work.ranks, key=lambda rank: rank or 10**9):
        total = 0.0
        for shape, count in shapes.items():
            made_for = rank if is_randomised(rank, shape) else None
            if (shape, made_for) not in known:
                weight = draw(*shape)
                # As many at a time as the product stacks; of all triplets one, since cuSOLVER takes them in turn.
                size, repeats = (1, 1) if made_for is None else (BATCH, 2)
                seconds = timed(lambda: needed_factors([weight] * size, made_for), repeats) / size
                known[shape, made_for] = seconds
                work.add(f"SVD of one {shape[0]} x {shape[1]}, {made_for or 'all'}", seconds)
            total += count * known[shape, made_for]
        # Randomised ones are counted with both shares.
        assumed = 0.0 if rank else work.machine.svd_share
        work.add(
            f"SVDs of {shapes.total()} modules, {rank or 'all'}", total, work.cost(rank).svd(work.machine), assumed
        )
    model = work.model()
    weights = {name: weight_matrix(model.get_submodule(name), name) for name in find_targets(model)}
    work.add("hash of their weights, for every start", timed(lambda: digest_all(weights)))


def gradients(work: Work) -> None:
    """Of all triplets, and of the first rank."""
    for rank in work.ranks[:2]:
        gradients_of(work, rank)
        gc.collect()


def gradients_of(work: Work, rank: int | None) -> None:
    """At delta_S = 0, which a replay has, and merged; the forward that a reference is."""
    spread = [0.65 + 0.1 * i for i in range(GROUP)]  # of the lengths, with mean 1
    prompts, completions = ([round(mean * f) for f in spread] for mean in (work.prompt, work.completion))
    batch = make_batch([work.ids(n) for n in prompts], [work.ids(n) for n in completions], 0).to(work.device)
    rows, cost = Rows.of(prompts, completions), work.cost(rank)
    with without_svds():
        model = work.model().eval().requires_grad_(False)
        coordinates = attach(model, basis="svd", model_id="random", cache_dir=None, rank=rank)
    bases, (backbone, _) = Bases(coordinates=[coordinates]), split_model(coordinates.model)
    budget = min(tokens_that_fit(backbone), rows.tokens)
    settings = ModelConfig(dtype="bfloat16", svd_rank=rank)
    held = memory(work.model("meta"), settings, arms=[get_arm("vanilla")], num_samples=GROUP, k=0, num_pairs=0)
    logits = LOGITS * min(CHUNK_SIZE, budget) * work.config.vocab_size * 2
    footprint = sum(held.values()) + budget * activation_bytes(backbone) + logits + 2 * KERNELS
    more: dict[str, Any] = {"modules": len(coordinates.sizes), "tokens of a pass": budget}
    more |= {"GiB counted": footprint / GIB}
    bases.run(batch)  # warm-up
    if work.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(lambda: bases.run(batch), 3)
    if work.device != "cpu":
        more |= {"GiB at the peak": torch.cuda.max_memory_allocated() / GIB}
    more |= {"tokens/s": rows.tokens / seconds}
    counted = cost.seconds(cost.gradient(rows), work.machine)
    work.add(f"gradients, {rank or 'all'}", seconds, counted, UTILISATION, **more)
    seconds = timed(lambda: bases.run_checked(batch, turn=0, whole=False), 2)
    work.add(f"gradients with a step's check, {rank or 'all'}", seconds, counted, UTILISATION)
    forward = cost.seconds(cost.forward(rows), work.machine)
    work.add("forward", timed(lambda: bases.score(batch), 3), forward, UTILISATION)
    for parameter in coordinates.parameters():
        parameter.data.normal_(std=1e-3)
    seconds = timed(lambda: bases.run(batch), 2)
    work.add(f"gradients, delta_S merged as in a training, {rank or 'all'}", seconds, counted, UTILISATION)


def sampling(work: Work) -> None:
    """Whole, and what a further token takes."""
    policy = Policy(work.model().eval().requires_grad_(False), load_tokenizer("organism"), "random", None, "")
    cost = work.cost(None)
    for number in work.batches:
        prompts = [prompt for _ in range(number // GROUP) for prompt in [work.ids(work.prompt)] * GROUP]
        make = lambda new: sample(policy, prompts, Sampler(max_new_tokens=new), seeds=range(number))  # noqa: E731
        make(2)  # warm-up
        first = timed(lambda: make(1))
        made: list[Any] = []
        seconds = timed(lambda: made.extend(make(work.num_new)))
        tokens = sum(len(completion.ids) for completion in made)
        counted = cost.sampling(Rows(number=number, prompt=work.prompt, completion=tokens / number), work.machine)
        work.add(
            f"sampling {number} x {work.num_new}", seconds, counted, UTILISATION,
            **{"tokens/s": tokens / seconds, "counted tokens/s": tokens / counted, "first token, s": first},
            **{"a further token, ms": 1000 * (seconds - first) / (work.num_new - 1)},
        )  # fmt: skip


def attaching(work: Work) -> None:
    """Steps without and with the probe."""
    plain = work.model(num_hidden_layers=work.layers, layer_types=None)
    ids = torch.randint(1, work.config.vocab_size, (4, work.tokens), device=work.device)
    with without_svds():
        for name, of_kind in ways(plain, ids):
            synced = {way: lambda step=step: (step(), sync()) for way, step in of_kind.items()}
            taken = interleaved(synced, 3)
            alone, attached = taken["alone"].wall, taken["attached"].wall
            work.add(f"a step with probe.attach, {name}", attached, **{"alone, s": alone, "ratio": attached / alone})


def exactness(work: Work) -> None:
    """Each run in a folder of its own, so that nothing is shared; at last one with the SVDs of the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        out = {name: Path(folder) / name for name in ("cpu", "first", "second", "SVDs of the CPU")}

        def replaying(name: str) -> subprocess.Popen[bytes]:
            words = ["probe", "replay", "--steps", work.steps, "--arm", "vanilla,projected,random", "--name", "run"]
            device = "cpu" if name == "cpu" else work.device
            command = [sys.executable, "-m", *words, "--set", f"model.device={device}", "--out", str(out[name])]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL)

        start = time.perf_counter()
        for names in (["cpu", "first", "second"], ["SVDs of the CPU"]):
            if names[0] != "cpu":
                copytree(out["cpu"] / "cache" / "svd", out[names[0]] / "cache" / "svd")
            processes = [replaying(name) for name in names]
            try:
                codes = [process.wait() for process in processes]
            finally:
                for process in processes:
                    process.kill()
            if any(codes):
                raise RuntimeError(f"probe replay: {dict(zip(names, codes, strict=True))}")
        runs = {name: path / "runs" / "run" for name, path in out.items()}
        files = [json.loads((runs[name] / "manifest.json").read_text())["files"] for name in ("first", "second")]
        differing = [name for name in files[0] if files[0][name] != files[1].get(name)]
        more: dict[str, Any] = {"files": len(files[0]), "differing between two runs": differing}
        for name, directory in runs.items():
            if name != "cpu":
                more |= {f"max |{field}| {name}": value for field, value in differences(runs["cpu"], directory).items()}
        work.add("exactness: four replays", time.perf_counter() - start, **more)


def differences(one: Path, other: Path) -> dict[str, float]:
    """{field: largest difference} of the cosines of steps and samples of two runs."""
    largest: dict[str, float] = {}
    for path in [one / "steps.jsonl", *sorted(one.glob("step_*.cos.jsonl.gz"))]:
        read = gzip.decompress if path.suffix == ".gz" else bytes
        pair = [read((run / path.name).read_bytes()).splitlines() for run in (one, other)]
        for a, b in zip(*([json.loads(line) for line in lines] for lines in pair), strict=True):
            if any(a.get(key) != b.get(key) for key in ("step", "arm", "sample_id")):
                raise RuntimeError(f"{path.name}: the runs do not hold the same rows")
            for field in ("cos_in", "cos_out", "cos_S_contrib", "cos_S_nll"):
                if (a.get(field) is None) != (b.get(field) is None):
                    largest[field] = float("inf")
                elif a.get(field) is not None:
                    largest[field] = max(largest.get(field, 0.0), abs(a[field] - b[field]))
    return largest


def drivers(work: Work) -> None:
    """Of what all triplets of a wide or tall weight come down to."""
    size = work.config.hidden_size
    ways: dict[str, Callable[[Tensor], object]] = {
        "eigenvectors of W W^T": lambda W: torch.linalg.eigh(W @ W.mT),
        "eigenvectors of W W^T, float64": lambda W: torch.linalg.eigh(W.double() @ W.double().mT),
        "SVD on the CPU, all threads": lambda W: torch.linalg.svd(W.cpu()),
    }
    if work.device != "cpu":
        for driver in ("gesvda", "gesvdj", "gesvd"):
            ways[f"SVD by {driver}"] = lambda W, driver=driver: torch.linalg.svd(W, driver=driver)
    for name, way in ways.items():
        way(torch.randn(64, 64, device=work.device))  # warm-up
        square = torch.randn(size, size, device=work.device)
        work.add(f"{size} x {size}: {name}", timed(lambda: way(square)))


PARTS: dict[str, tuple[Callable[[Work], None], int]] = {  # with its most seconds on a GPU
    "svd": (svds, 75),
    "gradient": (gradients, 60),
    "sampling": (sampling, 45),
    "attach": (attaching, 60),
    "exactness": (exactness, 120),
    "drivers": (drivers, 45),
}


def expired(*_: object) -> None:
    raise TimeoutError("the limit of the part")


def main() -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["Qwen3-4B", "tiny"], default="Qwen3-4B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    name = "a CPU" if on_cpu else torch.cuda.get_device_name(options.device)
    machines = [this_cpu("bfloat16")] if on_cpu else [gpu for key, gpu in GPUS.items() if key in name.lower()]
    if not machines:
        parser.error(f"no row in probe.settings.machines for {name}")
    facts = {"machine": name, "torch": torch.__version__, "threads": torch.get_num_threads(), "model": options.model}
    results = Results(options.json, facts)
    if options.model == "tiny":
        small: dict[str, Any] = {
            "ranks": (None, 32, 8),
            "prompt": 20,
            "completion": 30,
            "batches": (8, 16),
            "steps": "2",
        }
        work = Work(
            config=TINY,
            device=options.device,
            machine=machines[0],
            add=results.add,
            **small,
            num_new=8,
            layers=1,
            tokens=32,
        )
    else:
        work = Work(config=MODELS[options.model], device=options.device, machine=machines[0], add=results.add)
    signal.signal(signal.SIGALRM, expired)
    for part in options.parts.split(","):
        measure, limit = PARTS[part]
        print(part, flush=True)
        start = time.perf_counter()
        signal.alarm(10 * limit if on_cpu else limit)
        try:
            measure(work)
        except Exception:  # whatever one part meets, the others are measured
            traceback.print_exc()
        finally:
            signal.alarm(0)
        work.add(f"{part}, in all", time.perf_counter() - start)
        gc.collect()
        if not on_cpu:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
