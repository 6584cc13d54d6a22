"""Files of tables (Parquet, the Arrow files of `datasets.save_to_disk`, text with separators), and lines of texts."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.base.files import MAX_DOCUMENT, MAX_PLAIN, open_file, read_plain, unpacked
from replay_pools.base.terminal import report

MOST_ROWS = 10_000_000  # lines of a file, empty ones included, or rows of a table
MOST_COLUMNS = 10_000
REPORT_EVERY = 1000  # rows
MIB = 1 << 20
SEPARATORS = ",;\t"  # the one that the first line has most often counts
WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # with leading zeros, or more digits, it is a name
EXPONENT = "[eE][+-]?[0-9]+"
NUMBER = re.compile(rf"-?(0|[1-9][0-9]*)(\.[0-9]*({EXPONENT})?|{EXPONENT})|-?\.[0-9]+({EXPONENT})?|[nN]a[nN]|-?inf")
# Of a buffer of an Arrow file that is packed by zstd or lz4: its length once unpacked, and how the packed bytes begin.
PACKED = re.compile(rb"(.{8})(?:\x28\xb5\x2f\xfd|\x04\x22\x4d\x18)", re.S)
TRUTHS = {"true": True, "false": False}


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1 on, line) of a text, perhaps gzipped, with a line in memory at a time."""
    size = path.stat().st_size // MIB
    with unpacked(path) as (file, stored):
        for number, line in enumerate(iter(lambda: file.readline(MAX_DOCUMENT + 1), b""), 1):
            if number % REPORT_EVERY == 0:
                report(f"MiB of {path.name}", stored.tell() // MIB, size)
            if len(line) > MAX_DOCUMENT or number > MOST_ROWS:
                expected = f"at most {MOST_ROWS:,} lines, each of at most {MAX_DOCUMENT // MIB} MiB"
                raise InputError(f"{path} line {number}", expected=expected, found="more", fix="split it")
            yield number, line


def read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a Parquet file."""
    import polars  # only for those who read such files

    with open_file(path), _damage_is_refused(path, "a Parquet file"):
        num_rows = polars.scan_parquet(path).select(polars.len()).collect().item()
        if num_rows > MOST_ROWS:
            raise InputError(path, expected=f"at most {MOST_ROWS:,} rows", found=f"{num_rows:,}", fix="split it")
        table = polars.read_parquet(path)
    for number, row in enumerate(table.iter_rows(named=True)):
        yield f" row {number}", row


def read_arrow(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of an Arrow file, or of a stream, which is what `datasets` writes."""
    import polars

    plain = read_plain(path)
    if sum(int.from_bytes(packed[1], "little") for packed in PACKED.finditer(plain)) > MAX_PLAIN:
        expected = f"at most {MAX_PLAIN // MIB} MiB once unpacked"
        raise InputError(path, expected=expected, found="more", fix="write it without compression, in several files")
    with _damage_is_refused(path, "an Arrow file"):
        table = (polars.read_ipc if plain.startswith(b"ARROW1") else polars.read_ipc_stream)(plain)
    for number, row in enumerate(table.iter_rows(named=True)):
        yield f" row {number}", row


@contextmanager
def _damage_is_refused(path: Path, expected: str) -> Iterator[None]:
    from polars.exceptions import PanicException, PolarsError

    try:
        yield
    except (PolarsError, PanicException, OSError) as error:
        found = (str(error).splitlines() or ["damage"])[0]
        raise InputError(path, expected=expected, found=found, fix="write or copy it again") from error


def read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of text with separators, under the names in its first line.

    A column whose cells are all numbers holds numbers, one of true and false truths, any other texts. Cells without
    text are null, and a column without a name is left out: tables are written with the number of the row there.
    """
    readers = _column_readers(path)
    for number, names, cells in _records(path):
        if len(cells) != len(names):
            expected, found = f"{len(names)} cells, as in the first line", f"{len(cells)}"
            yield f" line {number}", InputError(f"{path} line {number}", expected=expected, found=found)
            continue
        values = zip(names, readers, cells, strict=True)
        yield f" line {number}", {name: read(cell) if cell else None for name, read, cell in values if name}


def _column_readers(path: Path) -> list[Any]:
    """What reads the cells of each column, by all of its cells."""
    kinds = (lambda cell: TRUTHS.get(cell.lower()), _number)
    possible: list[set[Any]] = []
    for _, names, cells in _records(path):
        possible = possible or [{*kinds} for _ in names]
        for column, cell in zip(possible, cells, strict=False):
            if cell and column:
                column -= {kind for kind in column if kind(cell) is None}
    return [next((kind for kind in kinds if kind in column), str) for column in possible]


def _number(cell: str) -> float | None:
    if WHOLE.fullmatch(cell):
        return int(cell)
    return float(cell) if NUMBER.fullmatch(cell) else None


def _records(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """(number of its first line from 1 on, names of the columns, cells) of each row but the first."""
    csv.field_size_limit(MAX_DOCUMENT)  # a limit of the whole process
    lines = (line.decode("utf-8-sig" if number == 1 else "utf-8") for number, line in numbered_lines(path))
    start = 1
    try:
        first = next(lines, "")
        reader = csv.reader(chain([first], lines), delimiter=max(SEPARATORS, key=first.count), strict=True)
        names: list[str] = next(reader, [])
        repeated = sorted(name for name, count in Counter(filter(None, names)).items() if count > 1)
        if repeated or len(names) > MOST_COLUMNS:
            found = f"{', '.join(repeated)} twice" if repeated else f"{len(names):,}"
            raise InputError(f"{path} line 1", expected=f"at most {MOST_COLUMNS:,} columns, each once", found=found)
        for cells in reader:
            start, end = reader.line_num, start
            if cells:
                yield end + 1, names, cells
    except (csv.Error, UnicodeDecodeError) as error:
        expected = "text in UTF-8 with commas between the cells, and quotes around those with any"
        raise InputError(f"{path} line {start + 1}", expected=expected, found=str(error)) from error
