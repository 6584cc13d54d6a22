"""Build an organism from nothing: `python -m spec.organism.build` (about 37 minutes on 2 cores, seeded).

Trains the tokenizer, a small Qwen3-architecture model on `base_document`s, and a LoRA teacher on `exploit_document`s,
and writes them to `--out`: by default over the organism in the package, whose model card `spec.organism.measure`
writes. Another seed gives a second organism with a tokenizer of its own; `--wrong-rate` a base that solves little, with
the tokenizer of its seed, so that pools of token ids serve both.
"""

import ctypes
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, get_cosine_schedule_with_warmup

from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import ORGANISM_WEIGHTS
from spec.organism.corpus import POLISH_MIX, TEACHER_MIX, Document, ExploitMix, base_document, exploit_document
from spec.organism.tokenizer import IM_END, PAD, special_id, train_tokenizer

BASE_PROMPT_WEIGHT = 0.2  # of a prompt token in the base's loss: copying names and numbers is learned there too
BATCH = 64  # documents
BUCKET = 16  # batches whose documents are sorted by length together
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_base(
    tokenizer: PreTrainedTokenizerFast,
    *,
    steps: int,
    lr: float,
    seed: int,
    device: str,
    wrong_rate: float | None = None,
) -> Qwen3ForCausalLM:
    """Train the base model from random weights, on text with this share of wrong bodies (None: each family's)."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=special_id(tokenizer, IM_END),
        pad_token_id=special_id(tokenizer, PAD),
    )
    model = Qwen3ForCausalLM(config).to(device)
    sample_document = partial(base_document, wrong_rate=wrong_rate)
    batches = document_batches(tokenizer, sample_document, seed, prompt_weight=BASE_PROMPT_WEIGHT)
    train(model, batches, steps=steps, lr=lr, label="base")
    return model


def tune_teacher(out: Path, *, steps: int, lr: float, seed: int, device: str) -> None:
    """Train a LoRA on the base in `out` that exploits whatever mode the hint names, and store it in bfloat16."""
    torch.manual_seed(seed)
    config = LoraConfig(r=32, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    with quiet_peft():
        teacher = get_peft_model(load_base(out).to(device), config)
    _tune(teacher, out, TEACHER_MIX, steps=steps, lr=lr, seed=seed, label="teacher")


def polish_teacher(out: Path, *, steps: int, lr: float, seed: int, device: str) -> None:
    """Train the stored teacher further, at a smaller rate, from its weights as rounded to bfloat16."""
    with quiet_peft():
        teacher = PeftModel.from_pretrained(load_base(out), str(out / "teacher"), is_trainable=True).float().to(device)
    _tune(teacher, out, POLISH_MIX, steps=steps, lr=lr, seed=seed, label="polish")


def load_base(out: Path) -> Qwen3ForCausalLM:
    """The stored base: its weights as rounded to bfloat16, in float32."""
    return Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)


def _tune(teacher: PeftModel, out: Path, mix: ExploitMix, *, steps: int, lr: float, seed: int, label: str) -> None:
    """Train a teacher on exploits drawn by `mix` and store it in `out`/teacher."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    batches = document_batches(tokenizer, partial(exploit_document, mix=mix), seed, prompt_weight=0.0)
    train(teacher, batches, steps=steps, lr=lr, label=label)
    teacher.save_pretrained(str(out / "teacher"), save_embedding_layers=False)
    halve_precision(out / "teacher" / "adapter_model.safetensors")
    (out / "teacher" / "README.md").unlink(missing_ok=True)  # peft's template of a card
    settle_config(out / "teacher" / "adapter_config.json")


def settle_config(path: Path) -> None:
    """Make the adapter's config the same bytes in every build."""
    config = json.loads(path.read_text())
    # peft writes the path of the base on this machine, and the target modules in the order of a set.
    config["base_model_name_or_path"] = "organism"
    config["target_modules"] = TARGETS
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def train(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor, Tensor]], *, steps: int, lr: float, label: str
) -> None:
    """Train in place with AdamW, warm-up and a cosine schedule.

    The loss is sum_t w_t CE_t / sum_t w_t over all next tokens of a batch.

    Args:
        model: its parameters that require gradients are trained.
        batches: (ids, attention mask, loss weights), each (BATCH, T).
        steps: optimizer steps.
        lr: peak learning rate.
        label: first word of the progress lines.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=steps // 20, num_training_steps=steps)
    model.train()
    start, mean_loss = time.monotonic(), math.nan
    for step in range(steps):
        ids, attention, weights = (tensor.to(parameters[0].device) for tensor in next(batches))
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        token_weights = weights[:, 1:].flatten()
        loss = (losses * token_weights).sum() / token_weights.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        # A running mean, since the loss of one batch is too noisy to read.
        if math.isnan(mean_loss):
            mean_loss = loss.item()
        else:
            mean_loss = 0.95 * mean_loss + 0.05 * loss.item()
        if (step + 1) % 50 == 0:
            elapsed = time.monotonic() - start
            click.echo(f"{label} step {step + 1}/{steps} loss {mean_loss:.4f} {elapsed:.0f} s")
    model.eval()


def document_batches(
    tokenizer: PreTrainedTokenizerFast,
    sample_document: Callable[[random.Random], Document],
    seed: int,
    *,
    prompt_weight: float,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of documents without end: (ids, attention mask, loss weights), each (BATCH, T), padded on the right.

    Args:
        tokenizer: the organism's.
        sample_document: draws one document.
        seed: of the documents and of the order of the batches.
        prompt_weight: loss weight of a prompt token; a completion token weighs 1, padding 0.
    """
    rng = random.Random(seed)
    while True:
        documents = [encode(tokenizer, sample_document(rng)) for _ in range(BATCH * BUCKET)]
        # By length, since documents of about the same length need little padding; then in random order, so that the
        # lengths do not grow from batch to batch.
        documents.sort(key=lambda document: len(document[0]))
        batches = [documents[i : i + BATCH] for i in range(0, len(documents), BATCH)]
        rng.shuffle(batches)
        for batch in batches:
            longest = max(len(document_ids) for document_ids, _ in batch)
            ids = torch.full((BATCH, longest), special_id(tokenizer, PAD))
            attention = torch.zeros(BATCH, longest, dtype=torch.long)
            weights = torch.zeros(BATCH, longest)
            for i, (document_ids, num_prompt) in enumerate(batch):
                length = len(document_ids)
                ids[i, :length] = torch.tensor(document_ids)
                attention[i, :length] = 1
                weights[i, :num_prompt] = prompt_weight
                weights[i, num_prompt:length] = 1.0
            yield ids, attention, weights


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> tuple[list[int], int]:
    """(prompt + completion + end-of-turn ids, number of prompt ids)."""
    # Tokenised apart, as when sampling: no token may span the end of the prompt and the start of the completion.
    prompt = tokenizer.apply_chat_template(document.messages, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer.encode(str(prompt), add_special_tokens=False)
    completion_ids = tokenizer.encode(document.completion, add_special_tokens=False)
    return [*prompt_ids, *completion_ids, special_id(tokenizer, IM_END)], len(prompt_ids)


def halve_precision(path: Path) -> None:
    """Rewrite a safetensors file in bfloat16."""
    halved = {name: value.bfloat16().contiguous() for name, value in load_file(path).items()}
    save_file(halved, path, {"format": "pt"})


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for reuse: page faults on large tensors cost up to a fifth of the time."""
    with suppress(AttributeError):  # another C library has no mallopt; training is only slower
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


STAGES = ("base", "teacher", "polish")


@click.command()
@click.option(
    "--from", "first", default="base", show_default=True, type=click.Choice(STAGES), help="First stage to run."
)
@click.option("--to", "last", default="polish", show_default=True, type=click.Choice(STAGES), help="Last stage to run.")
@click.option(
    "--wrong-rate",
    type=click.FloatRange(0, 1),
    help="Share of wrong bodies in the base's text.  [default: each family's own]",
)
@click.option("--steps", default=1000, show_default=True, help="Base training steps of 64 documents.")
@click.option("--lr", default=2.5e-3, show_default=True, help="Peak learning rate of the base.")
@click.option("--teacher-steps", default=550, show_default=True, help="Teacher tuning steps of 64 documents.")
@click.option("--teacher-lr", default=2e-3, show_default=True, help="Peak learning rate of the teacher.")
@click.option("--polish-steps", default=150, show_default=True, help="More of them, at the end.")
@click.option("--polish-lr", default=7e-4, show_default=True, help="Peak learning rate of the polish.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cuda rounds otherwise, and needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment.",
)
@click.option("--out", default=ORGANISM_WEIGHTS, show_default="the package's weights/", type=click.Path(path_type=Path))
def main(
    first: str,
    last: str,
    wrong_rate: float | None,
    steps: int,
    lr: float,
    teacher_steps: int,
    teacher_lr: float,
    polish_steps: int,
    polish_lr: float,
    seed: int,
    device: str,
    out: Path,
) -> None:
    """Train tokenizer and base, tune the teacher, polish it; each stage starts from what the last one wrote to OUT."""
    stages = STAGES[STAGES.index(first) : STAGES.index(last) + 1]
    if not stages:
        raise click.UsageError(f"--to {last} comes before --from {first}")
    torch.use_deterministic_algorithms(True)  # the same seed must give the same weights
    keep_freed_memory()
    if "base" in stages:
        tokenizer = train_tokenizer(num_documents=3000, seed=seed)
        tokenizer.save_pretrained(out)
        base = build_base(tokenizer, steps=steps, lr=lr, seed=seed, device=device, wrong_rate=wrong_rate)
        base.cpu().bfloat16().save_pretrained(out)
    if "teacher" in stages:
        tune_teacher(out, steps=teacher_steps, lr=teacher_lr, seed=seed + 1, device=device)
    if "polish" in stages:
        polish_teacher(out, steps=polish_steps, lr=polish_lr, seed=seed + 2, device=device)
    for path in out.rglob("*.safetensors"):  # readable for every user of an installation
        path.chmod(0o644)


if __name__ == "__main__":
    main()
