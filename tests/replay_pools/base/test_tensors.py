"""Checked tensor files: no flipped bit and no cut goes unseen, and a header cannot ask for memory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from replay_pools.base.errors import InputError
from replay_pools.base.tensors import check_tensors, read_tensors, seal, write_tensors

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
    for _ in range(8):  # safetensors orders several metadata keys anew in every call; the header is one
        assert (path.read_bytes(), write_tensors(path, TENSORS, HEADER))[0] == path.read_bytes()


def test_every_flipped_bit_is_seen(path: Path) -> None:
    """Of the length, the header, the seal and the tensors."""
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in (0, 3, 7):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
            with pytest.raises(InputError, match=r"t\.safetensors: expected"):
                read_tensors(path, "pt", fix="")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[:40],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: (2**60).to_bytes(8, "little") + data[8:],
        lambda data: (8).to_bytes(8, "little") + b"[" * 8 + data,
        lambda data: (4).to_bytes(8, "little") + b"[{}]" + data,
    ],
    ids=["empty", "no length", "half a header", "cut", "longer", "huge header", "no JSON", "a list"],
)
def test_damage_is_one_error(path: Path, damage) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"t\.safetensors: expected .*; do this"):
        read_tensors(path, "np", fix="do this")


@pytest.mark.parametrize("metadata", [{"format": "pt"}, None])
def test_a_file_of_another_library(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """It has no seal, which is no fault but where it should be ours; `seal` gives it one and leaves the rest."""
    path = tmp_path / "adapter.safetensors"
    save_file(TENSORS, path, metadata)
    assert not check_tensors(path)
    with pytest.raises(InputError, match="expected a tensor file with its sha256"):
        read_tensors(path, "pt", fix="")
    seal(path)
    assert check_tensors(path)
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in load_file(path).items())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        check_tensors(path)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        check_tensors(path)
