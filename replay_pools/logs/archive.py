"""The archives of inspect_ai (`.eval`): zip files with a JSON file for each sample."""

import importlib.util
import re
import zipfile
import zlib
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.base.files import MAX_DOCUMENT, open_file, parse_python_json

ZSTD = 93  # the method of an entry packed with zstd, which zipfile knows from Python 3.14 on
MIB = 1 << 20
CONVERT = "convert it: inspect log convert --to json --output-dir DIR LOG"


def read_archive(path: Path) -> Iterator[tuple[str, Any]]:
    """The samples of an archive."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            # A sample that was logged again repeats its name: the last one counts.
            entries = {entry.filename: entry for entry in archive.infolist()}
            headers = [name for name in ("header.json", "_journal/start.json") if name in entries]
            evaluation = _entry(archive, entries[headers[0]], path).get("eval") if headers else None
            model = evaluation.get("model") if isinstance(evaluation, dict) else None
            for name in entries:
                if not (name.startswith("samples/") and name.endswith(".json")):
                    continue
                try:
                    if re.search(r"_epoch_\d+/", name):
                        where, expected = f"{path} {name}", "a sample in one file"
                        raise InputError(where, expected=expected, found="one in parts", fix=CONVERT)
                    sample: Any = {"model": model, **_entry(archive, entries[name], path)}
                except InputError as error:
                    sample = error
                yield f" {name}", sample
    except zipfile.BadZipFile as error:
        raise InputError(path, expected="an inspect archive (zip)", found=str(error)) from error


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> dict[str, Any]:
    """The object in one entry of an archive."""
    place = f"{path} {entry.filename}"
    if entry.file_size > MAX_DOCUMENT:
        expected, found = f"at most {MAX_DOCUMENT // MIB} MiB", f"{entry.file_size // MIB} MiB"
        raise InputError(place, expected=expected, found=found)
    try:
        text = _unpacked_zstd(archive, entry) if entry.compress_type == ZSTD else archive.read(entry)
    # RuntimeError: a password, or a compression that this Python lacks.
    except (RuntimeError, zlib.error, EOFError, zipfile.BadZipFile) as error:
        found, fix = str(error) or "its end is missing", CONVERT
        if entry.compress_type == ZSTD and not importlib.util.find_spec("zstandard"):
            found, fix = "zstd", f"pip install 'gradient-probe[inspect]', or {CONVERT}"
        raise InputError(place, expected="an entry that this Python can unpack", found=found, fix=fix) from error
    value = parse_python_json(text, place, float)
    if not isinstance(value, dict):
        raise InputError(place, expected="an object", found=type(value).__name__)
    return value


def _unpacked_zstd(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry packed with zstd; BadZipFile where they are not those that were packed."""
    try:
        import zstandard
    except ModuleNotFoundError:
        return archive.read(entry)
    packed = copy(entry)  # as an entry that is stored as it is
    packed.compress_type, packed.file_size = zipfile.ZIP_STORED, entry.compress_size
    del packed.CRC  # that of the unpacked bytes
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(archive.read(packed), read_across_frames=True)
        text = reader.read(entry.file_size + 1)
    except zstandard.ZstdError as error:
        raise zipfile.BadZipFile(str(error)) from error
    if len(text) != entry.file_size or zlib.crc32(text) != entry.CRC:
        raise zipfile.BadZipFile("other bytes than were packed")
    return text
