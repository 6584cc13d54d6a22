"""The objects in the files of a log: JSON lines, JSON, tables, inspect archives, or a folder of them.

A bare NaN or infinity, which many loggers write, is read as that number. Lines are read one at a time and kept on disk,
so that a log may be larger than the memory. To add a kind of file: a row in KINDS.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay_pools.base.errors import Faults, InputError, cut
from replay_pools.base.files import MAX_DOCUMENT, parse_python_json, unpacked
from replay_pools.base.spool import Spool
from replay_pools.logs.archive import read_archive
from replay_pools.logs.frames import MIB, MOST_COLUMNS, numbered_lines, read_arrow, read_csv, read_parquet

# In a folder, files of these names hold no rollouts.
OTHER_FILES = re.compile(
    r"(.*_)?(metadata|partition|manifest|config|report|header|reductions|summaries|state|dataset_info|dataset_dict)"
    r"|results_\d.*"  # of lm-eval: rates
    r"|cache-.*"  # of datasets: what a map has made of the files beside it
)
LISTS = ("samples", "rollouts", "results", "rows", "data")  # keys of a JSON object under which rollouts are looked for
GENERAL = "columns"  # the format of any other log
MOST_SHOWN = 60  # characters of a value in an error
MOST_NAMED = 3  # files of those left out
LINES = "write one object a line (.jsonl): lines are read one at a time"
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One object of a file: a line, an item of an array, a row of a table, or a sample of an archive."""

    path: Path
    where: str  # file and line, for errors
    fields: Fields


class Rows(Sequence[StoredRow]):
    """The objects of a log, kept on disk, and what is asked of all of them."""

    def __init__(self, rows: Iterable[StoredRow] = ()) -> None:
        self._spool: Spool[tuple[str, str, Fields]] = Spool()
        self.filled: Fields = {}  # {column: its first value}, of columns that have any
        self.kinds: dict[str, set[type]] = {}  # {column: the types of its values but null}, of every column
        for row in rows:
            self.append(row)

    def append(self, row: StoredRow) -> None:
        """Add an object at the end; InputError where the log has too many columns."""
        if len(row.fields) > MOST_COLUMNS or len(self.kinds) > MOST_COLUMNS:
            raise InputError(row.where, expected=f"at most {MOST_COLUMNS:,} columns", found="more")
        self._spool.append((str(row.path), row.where, row.fields))
        for name, value in row.fields.items():
            kinds = self.kinds.setdefault(name, set())
            if value is not None:
                self.filled.setdefault(name, value)
                kinds.add(type(value))

    def __len__(self) -> int:
        return len(self._spool)

    def __getitem__(self, place: Any) -> Any:
        """The object of a place from 0 on."""
        path, where, fields = self._spool[place]
        return StoredRow(Path(path), where, fields)


@dataclass(slots=True, kw_only=True)
class Log:
    """A log, filled while it is read: its objects, which columns are what, its groups, and whatever is wrong."""

    source: Path
    rows: Rows = field(default_factory=Rows)
    checked: Spool[Fields] = field(default_factory=Spool[Fields])  # the fields of a `rows.LogRow` for each object
    format: str = ""
    cannot_know: str = ""  # of the format
    was_recognised: bool = True  # the format, by the columns; else the user named it
    mapping: dict[str, str] = field(default_factory=dict)  # {target: column}
    guessed: set[str] = field(default_factory=set)  # targets whose column was found by its name
    notes: list[str] = field(default_factory=list)  # what was chosen, left out or is doubtful, one sentence each
    groups: list[list[Any]] = field(default_factory=list)  # of `rows.RowFacts`, which are compared with one another
    scale_rewards: str | None = None  # what its advantages were divided by: `objective.scale_rewards`; None: not known
    problem_ids: list[str] = field(default_factory=list)  # of each group
    faults: Faults = field(default_factory=Faults)
    most_bad: int = 0  # rows with faults of their own that may be left out
    num_bad: int = 0  # such rows
    left_out: list[str] = field(default_factory=list)  # where they are
    faults_of_bad: Faults = field(default_factory=Faults)

    def leave_out(self, where: str, faults: Faults) -> bool:
        """Note a row with faults of its own; returns whether it may be left out."""
        self.num_bad += 1
        self.faults_of_bad.take(faults)
        if self.num_bad > self.most_bad:
            return False
        self.left_out.append(where)
        return True

    @property
    def sha256(self) -> str:
        """Of all that is checked."""
        whole = hashlib.sha256()
        for row in self.checked:
            whole.update(repr(row).encode())
        return whole.hexdigest()

    def check(self) -> None:
        """Raise all faults, with the format at their end where it was recognised: another one may not have them.

        More bad rows than may be left out are faults, and any where the places of rows say what a group is.
        """
        in_place = self.mapping.get("group", "").startswith("every:")
        if self.num_bad and (in_place or self.num_bad > self.most_bad):
            self.faults.take(self.faults_of_bad)
            if self.most_bad:
                fix = f"mend them, or pass --skip-bad {self.num_bad}"
                fix = "mend them: blocks of rows, group=every:N, are other groups without them" if in_place else fix
                expected, found = f"at most {self.most_bad} bad rows (--skip-bad)", str(self.num_bad)
                self.faults.add(self.source, "bad", expected=expected, found=found, fix=fix)
        if self.faults and self.was_recognised and self.format not in ("", GENERAL):
            fix = f"--format {GENERAL} reads columns by their names, --format NAME another format"
            expected = f"the format {self.format}, by its columns"
            self.faults.add(self.source, "format", expected=expected, found="these faults", fix=fix)
        self.faults.check(self.source)


def described(value: Any) -> str:
    """A value in an error. In ASCII, since what is wrong may be a lone surrogate."""
    return cut(ascii(value), MOST_SHOWN)


def read_source(source: Path, most_bad: int = 0) -> Log:
    """The objects of a file or a folder, in the order of files and lines; damage goes to the log's faults.

    Raises:
        InputError: no such file, a pool of our own, or no file that could be read.
    """
    log = Log(source=source, most_bad=most_bad)
    if not source.exists():
        raise InputError(source, expected="a log: a file or a folder", found="no such file")
    if (source / "manifest.json").exists() and any(source.glob("step_*.jsonl.gz")):
        raise InputError(source, expected="a log of another tool", found="a pool in our format", fix="copy it")
    inside = {path: path.relative_to(source) for path in sorted(source.rglob("*"), key=_by_number) if path.is_file()}
    shown = [path for path, inner in inside.items() if not any(part.startswith(".") for part in inner.parts)]
    kinds = [path for path in shown if _kind(path) and not OTHER_FILES.fullmatch(path.name.partition(".")[0])]
    # prime-rl writes what it trained on beside everything that it sampled, and evaluations beside both.
    paths = [path for path in kinds if {"train", "effective"} <= set(path.parts)] or kinds
    others = [path for path in shown if path not in {*kinds}] + [path for path in kinds if path not in {*paths}]
    left_out = [str(inside[path]) for path in others]
    more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
    listed = ", ".join(left_out[:MOST_NAMED]) + more
    if source.is_dir() and not paths:
        expected = f"a file of rollouts ({', '.join(KINDS)})"
        raise InputError(source, expected=expected, found=listed or "an empty folder")
    if left_out:
        log.notes.append(f"files were left out: {listed}")
    for path in paths or [source]:
        for row in read_objects(path, log.faults, log.leave_out):
            log.rows.append(row)
    if not log.rows:
        log.check()
        raise InputError(source, expected="rollouts", found="none")
    return log


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A key that puts step_1000 behind step_999."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def read_objects(
    path: Path, faults: Faults, leave_out: Callable[[str, Faults], object] | None = None
) -> Iterator[StoredRow]:
    """The objects of one file, of a kind by its name (of none: JSON lines); damage is a fault.

    Args:
        path: of the file.
        faults: get what is wrong with the file.
        leave_out: gets each place that holds no object, with its faults; None: `faults` gets these, too.
    """
    try:
        for place, value in KINDS[_kind(path) or ".jsonl"](path):
            where, bad = f"{path}{place}", Faults()
            if isinstance(value, InputError):
                bad.note(value, "line")
            elif not isinstance(value, dict):
                bad.add(where, "object", expected="an object", found=type(value).__name__)
            else:
                yield StoredRow(path, where, value)
                continue
            if leave_out is None:
                faults.take(bad)
            else:
                leave_out(where, bad)
    except InputError as error:
        faults.note(error, "file")


def _kind(path: Path) -> str | None:
    """The row of KINDS for a file, by its name without `.gz`."""
    return next((kind for kind in KINDS if path.name.removesuffix(".gz").endswith(kind)), None)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            value = parse_python_json(line.rstrip(), f"{path} line {number}", float)
        except InputError as error:
            value = error
        yield f" line {number}", value


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """An array; an object that holds one; an object of columns and data; or JSON lines under this name."""
    with unpacked(path) as (file, _):
        text = file.read(MAX_DOCUMENT + 1)
    first, _, rest = text.strip().partition(b"\n")
    try:
        are_lines = bool(rest) and isinstance(parse_python_json(first, path, float), dict)
    except InputError:
        are_lines = False
    if are_lines:
        yield from _json_lines(path)
        return
    if len(text) > MAX_DOCUMENT:
        raise InputError(path, expected=f"JSON of at most {MAX_DOCUMENT // MIB} MiB", found="more", fix=LINES)
    value = parse_python_json(text, path, float)
    if isinstance(value, dict):
        value = _inner_list(value, path)
    if not isinstance(value, list):
        raise InputError(path, expected="a JSON array or object", found=type(value).__name__)
    for number, item in enumerate(value):
        yield f" item {number}", item


def _inner_list(value: Fields, path: Path) -> list[Any]:
    """The rollouts in an object: a table of columns and data, else the list of objects that it holds."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list):  # a table of wandb; a row of other columns is none
        is_row = [isinstance(row, list) and len(row) == len(columns) for row in data]
        return [
            dict(zip(map(str, columns), row, strict=True)) if fits else row
            for row, fits in zip(data, is_row, strict=True)
        ]
    if {"results", "configs"} <= value.keys() and isinstance(value["results"], dict):
        fix = "give the samples_*.jsonl beside it, which lm_eval --log_samples writes"
        raise InputError(path, expected="rollouts", found="the rates of an evaluation by lm-eval", fix=fix)
    names = [name for name, inner in value.items() if isinstance(inner, list) and inner and isinstance(inner[0], dict)]
    named = [name for name in LISTS if name in names] or names
    if not named:
        return [value]
    if len(named) > 1 and named[0] not in LISTS:
        found = f"lists {', '.join(named)}"
        raise InputError(path, expected="one list of rollouts", found=found, fix="put one in a file of its own")
    model = value["eval"].get("model") if isinstance(value.get("eval"), dict) else None
    return [{"model": model, **item} if model and isinstance(item, dict) else item for item in value[named[0]]]


# How the objects of a kind of file are read: pairs of place (" line 3") and value, or the error of one that is broken.
KINDS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".eval": read_archive,
}
