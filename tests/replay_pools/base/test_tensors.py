"""Tensor files: what was written is read, in the same bytes each time, and damage is one error."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from replay_pools.base.errors import InputError
from replay_pools.base.tensors import read_tensors, write_tensors

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1.5], dtype=torch.bfloat16), "c": torch.empty(0, 4)}
HEADER = {"k": 4, "modules": ["q", "p"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "t.safetensors", TENSORS, HEADER)
    return tmp_path / "t.safetensors"


def test_what_was_written_is_read_and_the_format_is_safetensors(path: Path) -> None:
    tensors, header = read_tensors(path, "pt", fix="")
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in load_file(path).items():
        assert torch.equal(tensors[name], TENSORS[name])
        assert torch.equal(tensor, TENSORS[name])
        assert tensors[name].dtype == TENSORS[name].dtype
    for _ in range(8):
        assert (path.read_bytes(), write_tensors(path, TENSORS, HEADER))[0] == path.read_bytes()


def test_damage_is_one_error(path: Path) -> None:
    """Empty, half a header, cut, a huge header, a list as header."""
    data = path.read_bytes()
    huge, listed = (2**60).to_bytes(8, "little") + data[8:], (4).to_bytes(8, "little") + b"[{}]" + data
    for damaged in (b"", data[:40], data[:-1], huge, listed):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"t\.safetensors: expected .*; do this"):
            read_tensors(path, "np", fix="do this")


@pytest.mark.parametrize("metadata", [{"format": "pt"}, None])
def test_a_file_of_another_library_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file(TENSORS, tmp_path / "adapter.safetensors", metadata)
    with pytest.raises(InputError, match="expected a tensor file of gradient-probe"):
        read_tensors(tmp_path / "adapter.safetensors", "pt", fix="")
