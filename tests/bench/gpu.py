"""What the parts of a run cost on a GPU, as ratios to a plain forward and backward: python tests/bench/gpu.py

Qwen3-4B's shapes with random weights in bfloat16, nothing downloaded; 8 rollouts of 600 + 1000 tokens; at most 9
minutes.

    limit           frozen forward and backward of the 8 rollouts, packed, logits of completions alone
    replay          the step of `probe replay`: three arms on per-sample gradients in the SVD basis, all triplets
    replay, rank    the same with the largest triplets of each module
    training        the step of `probe train`: one arm at delta_S != 0, which is folded into the weights, and AdamW
    sample          32 prompts x 8 rollouts by this program, in the batches that fit its budget of memory
    generate        the same completions of the same batches by transformers' `generate`
    SVD             of one weight of each shape, and from these of all modules (no weight of Qwen3-4B is square)

    seconds         the best of the repeats; replay and limit run in turn
    ratio           seconds / those of the limit; of sampling: those that 8 x 1000 tokens take at the measured speed
    tokens/s        of prompts and completions in a step, of completions in sampling
    peak            GiB allocated beside what was held before the call: weights and factors do not count; its ratio
    host-bound      share of the seconds in which the GPU had nothing to do

Steps are timed with random orthonormal factors in the place of the SVD's: their products take as long.
A part that does not fit into its share of the minutes, or into the memory, is left out and named. `--small` checks on a
CPU in seconds that everything runs; its numbers mean nothing, and what only a GPU shows is "-".
"""

import argparse
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import psutil
import torch
import transformers
from bench_sampling import generated
from gpu_meter import GIB, Cost, Deadline, TimeUpError, costs
from gpu_workload import FULL, SMALL, Shape, adapted, group_of, measures_of, policy_of, prompts_of, weight_shapes
from torch import Tensor
from transformers.utils.logging import disable_progress_bar
from ways import limit

from extraction.adapters.interface import Coordinates
from extraction.adapters.svd import needed_factors
from extraction.batch import make_batch
from extraction.logprobs import split_model
from extraction.passes import tokens_that_fit
from probe.settings.loss import LossSettings
from probe.step.bases import Bases
from probe.step.groups import Group
from probe.step.reference import References
from probe.step.step import Measure, train_step
from probe.step.update import Stepper, Updater
from replay_pools.sampling.engines import Sampler
from replay_pools.sampling.sample import default_budget, sample, split

SHARE = 0.95  # of the minutes; the rest is for a call that is under way when the time is up
ARMS = ("vanilla", "projected", "random")


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table; None is what was not measured."""

    part: str
    seconds: float | None = None
    ratio: float | None = None
    tokens_per_second: float | None = None
    peak_gib: float | None = None
    peak_ratio: float | None = None
    host_bound: float | None = None
    note: str = ""


@dataclass(slots=True)
class Bench:
    """What is measured, and what was found."""

    shape: Shape
    device: torch.device
    facts: dict[str, object]
    rows: list[Row] = field(default_factory=list)

    def add(self, part: str, cost: Cost, tokens: int | None = None, note: str = "") -> Row:
        """The row of a cost."""
        row = Row(part=part, **asdict(cost), note=note)
        if tokens is not None:
            row.tokens_per_second = tokens / cost.seconds
        self.rows.append(row)
        return row

    def compare(self) -> None:
        """The ratios of all rows to the limit, where it was measured."""
        base = next((row for row in self.rows if row.part == "limit"), None)
        if base is None or base.seconds is None:
            return
        for row in self.rows:
            seconds = row.seconds
            if row.part in ("sample", "generate") and row.tokens_per_second is not None:
                seconds = self.shape.rollouts * self.shape.completion / row.tokens_per_second
            if seconds is not None:
                row.ratio = seconds / base.seconds
            if row.peak_gib is not None and base.peak_gib:
                row.peak_ratio = row.peak_gib / base.peak_gib


def replay(bench: Bench, deadline: Deadline) -> None:
    """The limit and the step of a replay, in turn."""
    shape, coordinates = bench.shape, adapted(bench.shape, bench.device)
    bench.facts["weights GiB"] = gib(coordinates.model.parameters())
    bench.facts["factors GiB"] = gib(coordinates.model.buffers())
    bench.facts["tokens of a pass"] = tokens_that_fit(split_model(coordinates.model)[0])
    group = group_of(shape)
    batch = make_batch(group.prompt_ids, group.completion_ids, 0).to(bench.device)
    ways = {"limit": partial(limit, coordinates, batch, None), "replay": step_of(shape, coordinates, ARMS)}
    for part, cost in costs(ways, bench.device, deadline, profiled=True).items():
        bench.add(part, cost, shape.tokens)


def truncated(bench: Bench, deadline: Deadline) -> None:
    """The step of a replay in the truncated basis."""
    coordinates = adapted(bench.shape, bench.device, bench.shape.rank)
    part = f"replay, rank {bench.shape.rank}"
    step = step_of(bench.shape, coordinates, ARMS)
    bench.add(part, costs({part: step}, bench.device, deadline, profiled=True)[part], bench.shape.tokens)


def training(bench: Bench, deadline: Deadline) -> None:
    """The step of a training that has begun."""
    coordinates = adapted(bench.shape, bench.device)
    coordinates.load_values({module: torch.full((r,), 1e-3) for module, r in coordinates.sizes.items()})
    step = step_of(bench.shape, coordinates, ARMS[:1], trains=True)
    found = costs({"training": step}, bench.device, deadline, profiled=True)
    bench.add("training", found["training"], bench.shape.tokens)


def step_of(shape: Shape, coordinates: Coordinates, arms: Sequence[str], *, trains: bool = False) -> Callable[[], None]:
    """One step on the rollouts, which with `trains` moves the policy."""
    group, measures, updater = group_of(shape), measures_of(coordinates, *arms), None
    if trains:
        updater = Updater(Stepper(coordinates, lr=7e-5), measures[0].arm)
    return partial(one_step, Bases(coordinates=[coordinates]), group, measures, References(coordinates), updater)


def one_step(
    bases: Bases, group: Group, measures: Sequence[Measure], references: References, updater: Updater | None
) -> None:
    """As `probe replay` and `probe train` take it."""
    result = train_step(
        bases,
        [group],
        measures,
        conditions={"plain": LossSettings()},
        planning=[[False] * len(ids) for ids in group.completion_ids],
        pad_id=0,
        references=references,
        updater=updater,
    )
    broken = [arm.broken for arm in result.arms if arm.broken]
    assert not broken, broken


def sampling(bench: Bench, deadline: Deadline) -> None:
    """This program's sampling and transformers' `generate`, which makes the same completions."""
    shape, policy = bench.shape, policy_of(bench.shape, bench.device)
    prompts, sampler = prompts_of(shape), Sampler(max_new_tokens=shape.new_tokens)
    seeds = range(len(prompts))
    completions = sample(policy, prompts, sampler, seeds=seeds)
    lengths = [len(prompt) for prompt in prompts]
    batches = list(split(policy.model, lengths, shape.new_tokens, default_budget(policy.model)))

    def generate() -> None:
        for rows in batches:
            generated(policy, [prompts[row] for row in rows], [completions[row] for row in rows])

    ways = {"sample": partial(sample, policy, prompts, sampler, seeds=seeds), "generate": generate}
    num_tokens = sum(len(completion.ids) for completion in completions)
    note = f"{len(prompts)} rollouts, {num_tokens} tokens, batches: {len(batches)}"
    for part, cost in costs(ways, bench.device, deadline).items():
        bench.add(part, cost, num_tokens, note)


def decompositions(bench: Bench, deadline: Deadline) -> None:
    """The SVD of one weight of each shape, cheapest first; the time of all modules follows, where need be by work."""
    counts = Counter(weight_shapes(bench.shape))
    shapes = sorted(counts, key=work)
    seconds: dict[tuple[int, int], float] = {}
    for weight_shape in shapes:
        # A warm-up and a run must fit, judged by the shape before: a decomposition cannot be interrupted.
        if seconds and 2 * by_work(seconds, weight_shape) > deadline.left:
            break
        weight = torch.randn(weight_shape, device=bench.device, dtype=torch.bfloat16)
        part = f"SVD {weight_shape[0]} x {weight_shape[1]}"
        cost = costs({part: partial(needed_factors, [weight])}, bench.device, deadline, most_repeats=1)[part]
        bench.add(part, cost, note=f"one of {counts[weight_shape]} modules")
        seconds[weight_shape] = cost.seconds
    total = 0.0
    for weight_shape, count in counts.items():
        total += count * (seconds.get(weight_shape) or by_work(seconds, weight_shape))
    note = f"extrapolated from {len(seconds)} of {len(counts)} shapes"
    whole = Cost(seconds=total, peak_gib=None, host_bound=None)
    bench.add(f"SVD of all {counts.total()} modules", whole, note=note)


def work(weight_shape: tuple[int, int]) -> int:
    """What the operations of an SVD are in proportion to."""
    return max(weight_shape) * min(weight_shape) ** 2


def by_work(seconds: dict[tuple[int, int], float], weight_shape: tuple[int, int]) -> float:
    """The seconds that a shape takes, from those of the largest that was measured."""
    largest = max(seconds, key=work)
    return seconds[largest] * work(weight_shape) / work(largest)


Part = Callable[[Bench, Deadline], None]
PARTS: dict[str, tuple[Part, float]] = {  # with their shares of the time
    "limit and replay": (replay, 0.25),
    "replay, truncated": (truncated, 0.1),
    "training": (training, 0.2),
    "sample and generate": (sampling, 0.25),
    "SVD": (decompositions, 0.2),
}


def run_parts(bench: Bench, deadline: Deadline) -> None:
    """Every part in its share of the time, to which what earlier parts did not need is added."""
    shares = [share for _, share in PARTS.values()]
    for number, (name, (part, share)) in enumerate(PARTS.items()):
        seconds = deadline.left * share / sum(shares[number:])
        own = Deadline(deadline.at - deadline.left + seconds)
        try:
            with own.enforced():
                part(bench, own)
        except TimeUpError:
            bench.rows.append(Row(part=name, note=f"left out: does not fit into {max(0, seconds):.3g} s"))
        except torch.OutOfMemoryError:
            bench.rows.append(Row(part=name, note="left out: does not fit into the memory"))
        # The model of a part goes before that of the next comes.
        gc.collect()
        torch.cuda.empty_cache()
    bench.compare()


def gib(tensors: Iterable[Tensor]) -> float:
    """Of all tensors together, to three digits."""
    return float(f"{sum(tensor.nbytes for tensor in tensors) / GIB:.3g}")


def show(bench: Bench) -> None:
    """The facts and the table."""
    for name, fact in bench.facts.items():
        print(f"{name}: {fact}")
    print(f"\n{'part':<26}{'seconds':>9}{'ratio':>8}{'tokens/s':>10}{'peak GiB':>10}{'ratio':>8}{'host-bound':>12}")
    for row in bench.rows:
        cells = [
            cell(row.seconds, 9, ".3f"),
            cell(row.ratio, 8, ".2f"),
            cell(row.tokens_per_second, 10, ".0f"),
            cell(row.peak_gib, 10, ".2f"),
            cell(row.peak_ratio, 8, ".2f"),
            cell(row.host_bound, 12, ".0%"),
        ]
        print(f"{row.part:<26}{''.join(cells)}  {row.note}".rstrip())


def cell(value: float | None, width: int, form: str) -> str:
    """A number, or "-" where there is none."""
    return f"{'-' if value is None else format(value, form):>{width}}"


def options_of() -> argparse.Namespace:
    """The command line; full shapes on a CPU and a GPU that is not there are refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny shapes: does everything run?")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0, help="that all parts together may take")
    parser.add_argument("--json", action="store_true", help="print JSON in the place of the table")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a GPU, found none; `--small --device cpu` checks that the script runs")
    if options.device == "cpu" and not options.small:
        parser.error("expected a GPU for the full shapes, found --device cpu; add --small")
    return options


def main() -> None:
    """Measure and show."""
    options = options_of()
    disable_progress_bar()
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    shape = SMALL if options.small else FULL
    facts: dict[str, object] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU: no GPU at hand",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "shape": shape.name,
        "dtype": "bfloat16, factors float32",
        "factors": "random orthonormal in the steps, real in the SVD alone",
        "rollouts of a step": f"{shape.rollouts} x ({shape.prompt} + {shape.completion}) tokens",
    }
    bench = Bench(shape, device, facts)
    # Counted from the start of the process: the imports are part of the minutes.
    run_parts(bench, Deadline(psutil.Process().create_time() + SHARE * 60 * options.minutes))
    if options.json:
        print(json.dumps({"facts": facts, "rows": [asdict(row) for row in bench.rows]}, indent=1))
    else:
        show(bench)


if __name__ == "__main__":
    main()
