"""The factors of many weights at once, cached by the content of each: on a CPU in parallel, on a GPU batched by shape.

An entry holds all needed triplets of one weight; a request for the R largest is served from it.

    <digest>.safetensors            U, S, Vh as computed
    <digest>.bfloat16.safetensors   U and Vh rounded, S as computed; what the rounding does

A rounded entry is made from the exact one where that is there, without another SVD.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from extraction.adapters.svd import Factors, Rounding, as_computed, largest, measure_rounding, needed_factors, rounded
from extraction.vocabulary import Storage
from replay_pools.files import write_atomic
from replay_pools.progress import report

BATCH = 8  # weights of one shape that a GPU decomposes in one call


class Factorised(NamedTuple):
    """The factors of a weight, the digest of its values, and what rounding did to the factors (None: not rounded)."""

    factors: Factors
    digest: str
    rounding: Rounding | None
    computed: bool = True  # False: read from the cache


def factorise_all(
    weights: Mapping[str, Tensor],
    cache_dir: Path | None,
    *,
    rank: int | None = None,
    storage: Storage = "float32",
) -> dict[str, Factorised]:
    """The factors of every weight (d_out, d_in) on its device, from the cache where an undamaged entry exists.

    On a CPU as many SVDs run at a time as torch may use threads, each on one: parallel SVDs use the cores better than
    parallel loops within one, and the bits do not depend on the number of cores.

    Args:
        weights: floating-point matrices of any precision.
        cache_dir: created on demand; None computes without reading or writing.
        rank: how many of the largest triplets; None is all of them.
        storage: of U and Vh; `float32` is as computed.
    """

    def read(name: str) -> Factorised | None:
        entry = read_entry(weights[name], cache_dir, storage)
        return None if entry is None else placed(entry, rank, weights[name].device)

    def make(names: Sequence[str]) -> list[Factorised]:
        entries = make_entries([weights[name] for name in names], cache_dir, storage)
        return [placed(entry, rank, weights[name].device) for name, entry in zip(names, entries, strict=True)]

    on_cpu = all(weight.device.type == "cpu" for weight in weights.values())
    with single_threads() as pool:
        found = dict(zip(weights, pool.map(read, weights), strict=True))
        missing = {name: weights[name] for name, entry in found.items() if entry is None}
        groups = batches(missing, 1 if on_cpu else BATCH)
        for names, made in zip(groups, (pool.map if on_cpu else map)(make, groups), strict=True):
            found |= zip(names, made, strict=True)
            report("SVDs", sum(entry is not None for entry in found.values()), len(found))
    return {name: entry for name, entry in found.items() if entry is not None}


def placed(entry: Factorised, rank: int | None, device: torch.device) -> Factorised:
    """The `rank` largest triplets of an entry on `device`."""
    return entry._replace(factors=largest(entry.factors, rank).each(lambda part: part.to(device)))


def make_entries(weights: Sequence[Tensor], cache_dir: Path | None, storage: Storage) -> list[Factorised]:
    """New entries for weights of one shape, written to the cache."""
    entries = [read_entry(weight, cache_dir, "float32") for weight in weights]
    computed = iter(needed_factors([w for w, entry in zip(weights, entries, strict=True) if entry is None]))
    made = []
    for weight, entry in zip(weights, entries, strict=True):
        exact = next(computed) if entry is None else placed(entry, None, weight.device).factors
        stored = exact if storage == "float32" else rounded(exact)
        rounding = None if storage == "float32" else measure_rounding(weight, exact, stored)
        made.append(Factorised(stored, digest(weight), rounding))
        if cache_dir is not None:
            write_entry(entry_path(cache_dir, made[-1].digest, storage), made[-1])
    return made


def batches(weights: Mapping[str, Tensor], size: int) -> list[list[str]]:
    """The names of weights that can be stacked, at most `size` together."""
    groups: dict[object, list[str]] = {}
    for name, weight in weights.items():
        groups.setdefault((weight.shape, weight.dtype, weight.device), []).append(name)
    return [names[i : i + size] for names in groups.values() for i in range(0, len(names), size)]


@contextmanager
def single_threads() -> Iterator[ThreadPoolExecutor]:
    """As many workers as torch may use threads, each of which computes on one."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def entry_path(cache_dir: Path, key: str, storage: Storage) -> Path:
    """Where the entry of a digest is."""
    return cache_dir / f"{key}{'' if storage == 'float32' else f'.{storage}'}.safetensors"


def write_entry(path: Path, entry: Factorised) -> None:
    """Replace the file."""
    tensors = {name: tensor.cpu() for name, tensor in entry.factors._asdict().items() if tensor is not None}
    if entry.rounding is not None:
        tensors["rounding"] = torch.tensor(entry.rounding, dtype=torch.float64)
    write_atomic(path, save(tensors, metadata={"sha256": checksum(*tensors.values())}))


def read_entry(weight: Tensor, cache_dir: Path | None, storage: Storage) -> Factorised | None:
    """The cached entry on the CPU, in memory of its own; None when it is missing, unreadable or damaged."""
    if cache_dir is None:
        return None
    key = digest(weight)
    try:
        with safe_open(entry_path(cache_dir, key, storage), framework="pt") as file:
            stored, expected = set(file.keys()), (file.metadata() or {}).get("sha256")
            names = [name for name in (*Factors._fields, "rounding") if name in stored]
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (OSError, SafetensorError):
        return None
    if "S" not in tensors or checksum(*tensors.values()) != expected:
        return None
    rounding = Rounding(*tensors["rounding"].tolist()) if "rounding" in tensors else None
    return Factorised(Factors(tensors.get("U"), tensors["S"], tensors.get("Vh")), key, rounding, computed=False)


def digest(weight: Tensor) -> str:
    """sha256 of the shape, the dtype of the SVD and the values of `weight` in that dtype.

    A bf16 checkpoint and its copy upcast to float32 hold the same values and so share the factors and the digest.
    """
    values = as_computed(weight)
    return hashlib.sha256(f"{tuple(values.shape)} {values.dtype} {checksum(values)}".encode()).hexdigest()


def combine(digests: Mapping[str, str]) -> str:
    """sha256 over names and digests of weights, in order: the `weights_sha256` of a fingerprint."""
    return hashlib.sha256("".join(f"{name} {key}\n" for name, key in digests.items()).encode()).hexdigest()


def checksum(*tensors: Tensor) -> str:
    """sha256 of the bytes of the tensors, row-major, in order."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
