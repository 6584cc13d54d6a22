"""Read the rows of a log: JSON lines, JSON, tables, dumps of torch, archives of inspect, a folder of them, or objects.

    rows = read_rows("rollouts.jsonl")    go through it as often as you like; nothing is kept in memory

To add a kind of file: a row in KINDS.
"""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from replay_pools.base.errors import InputError, cut
from replay_pools.base.files import MAX_DOCUMENT, file_sha256, open_file, parse_json
from replay_pools.logs.columns import EVALUATION, ROLLOUT_KEYS, TEXTS

Fields = dict[str, Any]
BATCH_ROWS = 10_000  # of a Parquet file in memory
LISTED_FILES = 3  # of those left out
HEAD = 100  # of a file, among which one has the keys of a rollout
# In a folder, files of these names hold no rollouts, whatever their keys: of a model, and of `datasets` for a map.
OTHER_FILES = re.compile(r"tokenizer.*|vocab|cache-.*")
# A file or folder of one training step, as `completions_00010.parquet`, `global_step_3` or verl's `7.jsonl`.
STEP = re.compile(r"(?:^|[/_.-])(?:step|iter|iteration|epoch|update|rollout|completions)s?[_-]?(\d+)(?=[/_.-]|$)", re.I)
PACKED = re.compile(r"\.(jsonl?|ndjson|csv|tsv|parquet|arrow)\.\w+$")


class SkipRow(Exception):  # noqa: N818 (no error of the log)
    """A row that holds no rollout to train on; its text says why."""


class Row(NamedTuple):
    """One object of a log; the error of one that cannot be read, or why it is left out."""

    file: str
    where: str  # the file and a place in it, as "log.jsonl line 3"
    fields: Fields
    error: InputError | SkipRow | None = None

    @property
    def may_hold(self) -> bool:
        """Whether it has a key that rollouts have; what cannot be read may."""
        return self.error is not None or bool(ROLLOUT_KEYS & self.fields.keys())


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a log. Each iteration reads them again."""

    source: str
    read: Callable[[], Iterator[Row]]
    notes: tuple[str, ...] = ()
    steps: dict[str, int] | None = None  # {file: step}, where every file is of one step

    def __iter__(self) -> Iterator[Row]:
        return self.read()


def read_rows(source: Any) -> Rows:
    """Return the rows of a path (a file or a folder), a list of objects, a DataFrame or a `datasets.Dataset`.

    A folder is read in the order of files and numbers. Evaluations next to training, copies of a file, and files that
    hold no rollouts are left out; the notes say so.

    Raises:
        InputError: no such file, one of our own pools, or nothing that could be read.
    """
    if not isinstance(source, str | Path):
        return _rows_in_memory(source)
    source = Path(source)
    if not source.exists():
        raise InputError(source, expected="a log: a file or a folder", found="no such file")
    if (source / "manifest.json").exists() and any(source.glob("step_*.jsonl.gz")):
        raise InputError(source, expected="a log of another tool", found="a pool in our format", fix="copy it")
    if not source.is_dir():
        return Rows(str(source), lambda: _rows_of([source]))
    paths, notes = _chosen(source)
    steps = {str(path): number for path in paths if (number := _step(str(path.relative_to(source)))) is not None}
    if len(steps) < len(paths) or len({*steps.values()}) == 1:
        return Rows(str(source), lambda: _rows_of(paths), tuple(notes))
    notes.append("a row without a step is of the step in the name of its file (--map step=none: all are of one)")
    return Rows(str(source), lambda: _rows_of(paths), tuple(notes), steps)


def _chosen(source: Path) -> tuple[list[Path], list[str]]:
    """Return the files of a folder that hold rollouts to train on, and notes on the others."""
    paths = sorted(  # step_1000 behind step_999
        (path for path in source.rglob("*") if path.is_file()),
        key=lambda path: [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))],
    )
    inside = {path: path.relative_to(source) for path in paths}
    chosen = [path for path, inner in inside.items() if not any(part.startswith(".") for part in inner.parts)]
    evaluations = {path for path in chosen if any(EVALUATION.search(Path(part).stem) for part in inside[path].parts)}
    first_of, left = dict[str, Path](), dict[str, str]()
    for is_kept, said in (
        (lambda path: kind_of(path) or not PACKED.search(path.name), "caution: packed files were left out"),
        (lambda path: kind_of(path) and not OTHER_FILES.fullmatch(path.name.partition(".")[0]), "files were left out"),
        # prime-rl writes what it trained on next to everything that it sampled.
        (lambda path: {"train", "effective"} <= {*inside[path].parts}, "files that were not trained on were left out"),
        (lambda path: any(r.may_hold for r in islice(_rows_of([path]), HEAD)), "files without rollouts were left out"),
        (lambda path: path not in evaluations, "caution: evaluations next to training were left out"),
        (lambda path: first_of.setdefault(file_sha256(path), path) == path, "caution: copies were left out"),
    ):
        kept = dict.fromkeys(path for path in chosen if is_kept(path))
        others = [str(inside[path]) for path in chosen if path not in kept]
        more = f" and {len(others) - LISTED_FILES} more" if len(others) > LISTED_FILES else ""
        if others and (kept or not any(map(kind_of, chosen))):
            left[said] = ", ".join(others[:LISTED_FILES]) + more
        chosen = [*kept] or chosen
    if not any(map(kind_of, chosen)):
        found = "; ".join(left.values()) or "an empty folder"
        raise InputError(source, expected=f"a file of rollouts ({', '.join(KINDS)})", found=found)
    return chosen, [f"{said}: {listed}" for said, listed in left.items()]


def _step(path: str) -> int | None:
    stem = path.rpartition("/")[2].partition(".")[0]
    numbers = [stem] if stem.isdigit() else STEP.findall(path)
    return int(numbers[-1]) if numbers else None


def _rows_of(paths: Iterable[Path]) -> Iterator[Row]:
    """Read the rows of files, one after another; a file that cannot be read is one row with an error."""
    for path in paths:
        try:
            yield from read_objects(path)
        except InputError as error:
            yield Row(str(path), str(path), {}, error)


def _rows_in_memory(given: Any) -> Rows:
    """Return the rows of a list of objects, a DataFrame of pandas or polars, or a data set."""
    source, notes = given, tuple[str, ...]()
    if isinstance(given, dict) and "train" in given:  # a DatasetDict
        source, others = given["train"], ", ".join(name for name in given if name != "train")
        notes = (f"caution: other splits were left out: {others}",) if others else ()
    if hasattr(source, "iter_rows"):  # polars
        items = partial(source.iter_rows, named=True)
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        items = partial(source.to_dict, "records")
    elif isinstance(source, Iterable) and not isinstance(source, Iterator | dict):
        items = partial(iter, source)
    else:
        fix = f"give one of {', '.join(source)}" if isinstance(source, dict) else ""  # a DatasetDict, or columns
        raise InputError("rows", expected="a path, a list of dicts or a table", found=type(source).__name__, fix=fix)

    read = lambda: (_row("rows", f" item {number}", plain_value(item)) for number, item in enumerate(items()))  # noqa: E731
    return Rows("rows", read, notes)


def plain_value(value: Any) -> Any:
    """Return a value of numpy, torch or pandas as plain Python."""
    if isinstance(value, dict):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, str | int | float | None):
        return value
    if hasattr(value, "tolist"):
        return plain_value(value.tolist())
    return None if type(value).__name__ in ("NAType", "NaTType") else str(value)  # a gap in a column of pandas


def _row(file: str, place: str, value: Any) -> Row:
    if not isinstance(value, dict | InputError):
        value = InputError("", expected="an object", found=type(value).__name__)
    where = file + place
    return Row(file, where, {}, value.at(where)) if isinstance(value, InputError) else Row(file, where, value)


def read_objects(path: Path) -> Iterator[Row]:
    """Read the objects of one file, of the kind that its name says (JSON lines without one).

    Raises:
        InputError: the file cannot be read at all.
    """
    for place, value in KINDS[kind_of(path) or ".jsonl"](path):
        yield _row(str(path), place, value)


def kind_of(path: Path) -> str | None:
    """Return the row of KINDS for a file name, without `.gz` and the like."""
    name = re.sub(r"\.(gz|zst)$", "", path.name)
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def described(value: Any) -> str:
    """Return a value for an error, in ASCII: the fault may be a lone surrogate."""
    return cut(ascii(value), 60)


# JSON


def _zstd(stored: BinaryIO) -> Any:
    import zstandard  # an extra

    return BufferedReader(zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True))


# {how a packed file begins: what unpacks it while it is read}
PACKINGS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stored: gzip.GzipFile(fileobj=stored),
    b"\x28\xb5\x2f\xfd": _zstd,
}
# {how a file begins that cannot be read: (what it is, what to do)}
REFUSED = {
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8")),
    b"\x80": ("a pickle, which may run code", "write JSON lines, or plain values by torch.save (.pt)"),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"BZh": ("bzip2", "unpack it"),
    b"\xfd7zXZ": ("xz", "unpack it"),
}


@contextmanager
def _unpacked(path: Path) -> Iterator[Any]:
    """Open a file of text, unpacking it while it is read.

    Raises:
        InputError: damage, or a packing or an encoding that has to be undone first.
    """
    with open_file(path) as stored, _damage_is_refused(path, "a complete packed file"):
        start = stored.read(6)
        stored.seek(0)
        for found, fix in (what for mark, what in REFUSED.items() if start.startswith(mark)):
            raise InputError(path, expected="text in UTF-8", found=found, fix=fix)
        yield next((unpack(stored) for mark, unpack in PACKINGS.items() if start.startswith(mark)), stored)


@contextmanager
def _damage_is_refused(path: Path, expected: str, fix: str = "write or copy it again") -> Iterator[None]:
    """Refuse a file at which the library that reads it fails, panics or is missing, with a line that names the file."""
    try:
        yield
    except (InputError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of polars is no Exception
        found = (str(error).splitlines() or [type(error).__name__])[0]
        fix = f"pip install {error.name}" if isinstance(error, ModuleNotFoundError) else fix
        raise InputError(path, expected=expected, found=found, fix=fix) from error


def _parse(text: bytes) -> Any:
    """Return the value of a JSON text, or its error."""
    try:
        return parse_json(text.removeprefix(b"\xef\xbb\xbf"), "", is_python=True)
    except InputError as error:
        return error


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """Read a value a line, or one document: an array, an object that holds one, or a table of columns and data."""
    with _unpacked(path) as file:
        first, second = file.readline(MAX_DOCUMENT + 1), file.readline(MAX_DOCUMENT + 1)
        is_lone = not second or isinstance(_parse(first), InputError)
        if first.strip() in (b"{", b"[") or (kind_of(path) == ".json" and is_lone):
            value = _parse(first + second + file.read(MAX_DOCUMENT + 1))
            if isinstance(value, InputError):  # too large, damaged, or several documents
                fix = "write one object a line (.jsonl): lines are read one at a time"
                raise InputError(path, expected=value.expected, found=value.found, fix=fix)
            yield from _items(value, path)
            return
        for number, line in enumerate(chain((first, second), iter(lambda: file.readline(MAX_DOCUMENT + 1), b"")), 1):
            if len(line) > MAX_DOCUMENT:
                expected = f"lines of at most {MAX_DOCUMENT >> 20} MiB"
                raise InputError(f"{path} line {number}", expected=expected, found="more")
            value = _parse(line.strip() or b"[]")
            if isinstance(value, InputError):
                is_python = line.startswith((b"{'", b"[{'"))
                fix = "write rows with json.dumps" if is_python else "mend it, or pass --skip-bad 1"
                value = InputError("", expected=value.expected, found=value.found, fix=fix)
            is_blank = not line.strip()
            if isinstance(value, list) and (value or is_blank) and all(isinstance(item, dict) for item in value):
                yield from ((f" line {number} item {place}", item) for place, item in enumerate(value))
            else:
                yield f" line {number}", value


def _items(value: Any, path: Path) -> Iterator[tuple[str, Any]]:
    rows = _inner_list(value, path) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    yield from ((f" item {number}", item) for number, item in enumerate(rows))


def _inner_list(value: Fields, path: Path) -> list[Any]:
    """Return the rollouts in an object: a table of columns and data, else the list of objects that it holds."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list):  # a table of wandb; a row of other columns is none
        is_row = [isinstance(row, list) and len(row) == len(columns) for row in data]
        return [dict(zip(columns, row, strict=True)) if fits else row for row, fits in zip(data, is_row, strict=True)]
    lists = {name: inner for name, inner in value.items() if isinstance(inner, list) and inner}
    names = [name for name, inner in lists.items() if isinstance(inner[0], dict) and ROLLOUT_KEYS & inner[0].keys()]
    if not names or ({*names} <= TEXTS and {"reward", "score"} & value.keys()):  # messages of one rollout
        return [value]
    if len(names) > 1:
        raise InputError(path, expected="one list of rollouts", found=", ".join(names), fix="put one in another file")
    model = value["eval"].get("model") if isinstance(value.get("eval"), dict) else None
    return [{"model": model, **item} if model and isinstance(item, dict) else item for item in lists[names[0]]]


# Tables


def _table(path: Path) -> Iterator[tuple[str, Any]]:
    """Read Parquet, or Arrow: a file, or a stream, as `datasets` writes it."""
    import polars  # only for those who read such files

    with open_file(path) as file, _damage_is_refused(path, f"a table ({path.suffix})"):
        if path.suffix == ".parquet":
            scan = polars.scan_parquet(path)
        else:
            scan = (polars.read_ipc(path) if file.read(6) == b"ARROW1" else polars.read_ipc_stream(path)).lazy()
        for start in range(0, scan.select(polars.len()).collect().item(), BATCH_ROWS):
            table = scan.slice(start, BATCH_ROWS).collect().cast({polars.selectors.decimal(): polars.Float64})
            yield from ((f" row {number}", row) for number, row in enumerate(table.iter_rows(named=True), start))


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    """Read text with separators: cells are texts, and empty ones are null."""
    import polars

    with _unpacked(path) as file, _damage_is_refused(path, "text in UTF-8 with the columns of its first line"):
        data = file.read()
        first = data.partition(b"\n")[0].decode(errors="replace")
        separator = max(",;\t", key=first.count)
        table = polars.read_csv(data, separator=separator, infer_schema=False, null_values=["", "nan", "NaN"])
        table = table.rename({name: name.strip() for name in table.columns if name.strip()})
    for number, row in enumerate(table.iter_rows(named=True), 2):  # as spreadsheets count: cells may hold line breaks
        if any(value is not None for value in row.values()):
            yield f" row {number}", {name: value for name, value in row.items() if name}


# Dumps and archives


def _torch(path: Path) -> Iterator[tuple[str, Any]]:
    """Read a dump of tensors and plain values, such as slime's {"rollout_id", "samples"}."""
    import torch

    fix = "write plain values and tensors: other objects could run code"
    with open_file(path) as file, _damage_is_refused(path, "a dump of plain values", fix):
        value = torch.load(file, map_location="cpu", weights_only=True)
    yield from _items(plain_value(value), path)


def _archive(path: Path) -> Iterator[tuple[str, Any]]:
    """Read the samples of an inspect archive."""
    with _damage_is_refused(path, "an inspect archive"):
        from inspect_ai.log import read_eval_log, read_eval_log_samples  # pyright: ignore[reportMissingImports] (an extra)

        model = read_eval_log(str(path), header_only=True).eval.model
        for sample in read_eval_log_samples(str(path), all_samples_required=False):
            fields = sample.model_dump(mode="json", exclude={"events", "events_data", "attachments"})
            calls = [event for event in sample.events if event.event == "model"]
            events = [event.model_dump(mode="json", include={"event", "tools"}, exclude_none=True) for event in calls]
            yield f" {sample.id} epoch {sample.epoch}", {"model": model, **fields, "events": events}


# {kind: its reader, which yields a place (" line 3") and a value, or the error of a value that is damaged}
KINDS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _table,
    ".arrow": _table,
    ".pt": _torch,
    ".eval": _archive,
}
