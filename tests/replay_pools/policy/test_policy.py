"""The organism as a policy: template, token-in token-out, recorded sampling log-probabilities, determinism."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, PreTrainedModel

from replay_pools.base.errors import InputError
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import (
    ORGANISM_WEIGHTS,
    Policy,
    load_policy,
    load_served_policy,
    load_skeleton,
    load_tokenizer,
    weights_sha,
)
from replay_pools.pool import Sampler
from replay_pools.rollout import early_end
from replay_pools.sampling import LocalEngine
from spec.organism.tokenizer import IM_START, ROLES


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("organism")


def test_template_renders_the_four_roles_with_one_token_each(policy: Policy) -> None:
    """Prompts end in the recorded tail."""
    assert policy.prompt_tail() == "<|im_end|>\n<|im_start|>assistant\n"
    text, ids = policy.render([{"role": "user", "content": "hi"}])
    assert text.endswith(policy.prompt_tail())
    assert policy.tokenizer.decode(ids) == text
    for role in ROLES:
        assert len(policy.tokenizer.encode(role, add_special_tokens=False)) == 1
        text = policy.tokenizer.apply_chat_template([{"role": role, "content": "x"}], tokenize=False)
        assert text == f"{IM_START}{role}\nx<|im_end|>\n"
    with pytest.raises(Exception, match="unknown role"):
        policy.render([{"role": "judge", "content": "x"}])


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
MARKED = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}END{% endgeneration %}AFTER
{% else %}{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FORGETS = MARKED.replace("{{ m.content }}END", "{{ m.content if loop.last else '' }}END")
FORGETS = FORGETS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
TEMPLATES = {
    "as it is": None,
    "marks hold what follows": MARKED.replace("END", "<|im_end|>\n").replace("AFTER\n", ""),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_are_what_the_policy_sampled(policy: Policy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of templates with marks too, `render_turns` gives the ids that a sampler saw and wrote, with each stop token."""
    if TEMPLATES[name]:
        monkeypatch.setattr(policy.tokenizer, "chat_template", TEMPLATES[name])
    prompt = [{"role": "user", "content": "Add 1."}]
    calls = {"role": "assistant", "content": "x = 1", "tool_calls": [{"function": {"name": "run", "arguments": "{}"}}]}
    tool, last = {"role": "tool", "content": "failed: x"}, {"role": "assistant", "content": "x = 2\n"}
    found = policy.render_turns(prompt, [calls, tool, last, {"role": "user", "content": "Thanks."}])
    assert (found.prompt, found.prompt_ids) == policy.render(prompt)
    texts = ["x = 1<|im_end|>", "\n<|im_start|>tool\nfailed: x<|im_end|>\n<|im_start|>assistant\n", "x = 2\n<|im_end|>"]
    parts = [policy.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert found.ids == sum(parts, [])
    assert found.mask == [place != 1 for place, part in enumerate(parts) for _ in part]
    assert "".join(policy.decode_turns(found.ids, found.mask)) == policy.decode(found.ids)
    assert policy.decode_turns(found.ids, found.mask)[::2] == ["x = 1", "x = 2\n"]
    assert early_end(found.ids, found.mask, policy.eos_ids) is None
    assert early_end(found.ids, None, policy.eos_ids) == len(parts[0]) - 1


@pytest.mark.parametrize("template", [FORGETS, CHATML.replace("<|im_end|>", "")])
def test_turns_that_were_not_seen_are_refused(policy: Policy, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that changes earlier turns, or ends one without a stop token, is refused."""
    template = template.replace("END", "<|im_end|>").replace("AFTER", "")
    monkeypatch.setattr(policy.tokenizer, "chat_template", template)
    turns = [{"role": role, "content": "x"} for role in ("assistant", "tool", "assistant")]
    with pytest.raises(InputError, match="chat template of model organism"):
        policy.render_turns([{"role": "user", "content": "Add 1."}], turns)


END, TEXT = 2, 0  # ids of <|im_end|> and <|endoftext|>
ENDS = {
    "the first of a list": (CHATML, [TEXT, END], "", END),
    "stripped, after thoughts": (CHATML.replace("m.content", "('<think>' + m.content) | trim"), [0, 2], "", END),
    "behind a space": (CHATML.replace("<|im_end|>", " <|im_end|>"), [TEXT, END], " ", END),
    "two tokens": (CHATML + "<|endoftext|>", [TEXT, END], "", END),
    "two tokens, a stop at the last": (CHATML + "<|endoftext|>", TEXT, "<|im_end|>\n", TEXT),
    "no stop": (CHATML, [TEXT], "", TEXT),
    "no end": (CHATML.replace("<|im_end|>", ""), [TEXT, END], "", TEXT),
    "no answer": (CHATML + "{{ raise_exception('') if messages[1:] }}", [TEXT, END], "", TEXT),
}


@pytest.mark.parametrize("case", ENDS)
def test_written_completions_end_as_the_template_ends_an_answer(case: str) -> None:
    """In the first token at which the policy stops; without one, in the first of its stop tokens."""
    template, eos, lead, end = ENDS[case]
    tokenizer = load_tokenizer("organism")
    tokenizer.chat_template, tokenizer.eos_token = template, "<|endoftext|>"
    chat = Chat(tokenizer, "mine", GenerationConfig(eos_token_id=eos))
    assert chat.completion_ids("return 3 ") == [*tokenizer.encode("return 3 " + lead, add_special_tokens=False), end]
    assert chat.answer_end == (lead, end)


def test_a_policy_that_has_diverged_is_named() -> None:
    """Weights that overflow give no pool of padding with log-probabilities that no JSON can hold."""
    broken = load_policy("organism")
    broken.model.get_input_embeddings().weight.data[:] = float("inf")
    with pytest.raises(InputError, match="finite logits"):
        LocalEngine(broken).sample([[5, 6], [7]], Sampler(max_new_tokens=4), seeds=range(2))


def test_weights_sha_does_not_depend_on_the_dtype_or_the_adapter(policy: Policy) -> None:
    assert load_policy("organism", dtype="bfloat16").base_weights_sha == policy.base_weights_sha
    teacher = load_policy("organism", adapter="teacher")
    assert teacher.base_weights_sha == policy.base_weights_sha
    assert weights_sha(teacher.model) != policy.base_weights_sha


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "./nowhere"}, "a model directory .*no such directory"),
        ({"name": "organism", "adapter": "nobody"}, "adapter_config.json"),
        ({"name": "organism", "device": "cuda:99"}, "present device"),
    ],
)
def test_what_cannot_be_loaded_is_named(options: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_policy(**options)


def test_a_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the minute of retries of its client."""
    model_info = Mock(side_effect=OSError("no route"))
    monkeypatch.setattr("replay_pools.policy.load.HfApi.model_info", model_info)
    with pytest.raises(InputError, match="model someone/some-model: .* found no route; .*download the model and pass"):
        load_tokenizer("someone/some-model")
    model_info.assert_called_once()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The organism as a model directory of somebody's, with the teacher's adapter in it."""
    return Path(shutil.copytree(ORGANISM_WEIGHTS, tmp_path / "model"))


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("load", [load_policy, load_skeleton, load_tokenizer, load_served_policy])
def test_code_that_comes_with_a_model_is_never_executed(load: Callable[[str], object], copied: Path) -> None:
    """Where transformers has no class of its own the model is refused, in one line."""
    (copied / "theirs.py").write_text(f"open({str(copied / 'executed')!r}, 'w')\nConfig = Model = Tokenizer = object\n")
    mapped = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    change(copied / "config.json", model_type="theirs", auto_map=mapped)
    change(copied / "tokenizer_config.json", tokenizer_class="Theirs", auto_map={"AutoTokenizer": ["theirs.T", None]})
    (copied / "tokenizer.json").unlink()
    (copied / "generation_config.json").unlink()
    with pytest.raises(InputError, match=r"auto_map"):
        load(str(copied))
    assert not (copied / "executed").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path: Path) -> None:
    torch.save({"x": torch.ones(2)}, path.parent / "pytorch_model.bin")
    path.unlink()


FAILING = {
    "TemplateSyntaxError": "{% if",
    "TemplateError: no": "{{ raise_exception('no') }}",
    "RecursionError": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "SecurityError": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize("fault", FAILING)
def test_a_template_that_fails_is_named(fault: str, copied: Path) -> None:
    (copied / "chat_template.jinja").write_text(FAILING[fault])
    with pytest.raises(InputError, match=rf"chat template of model .*: expected a template .*found {fault}"):
        load_served_policy(str(copied)).render([{"role": "user", "content": "x"}])


def other_shapes(path: Path) -> None:
    save_file({name: tensor[:, :3].contiguous() for name, tensor in load_file(path).items()}, path)


def a_part(path: Path) -> None:
    save_file(dict([*load_file(path).items()][:5]), path)


def saved_lora(directory: Path, **options: object) -> tuple[PreTrainedModel, str]:
    """A trained LoRA of the organism, not merged, and its directory."""
    torch.manual_seed(1)
    with quiet_peft():
        adapted = get_peft_model(load_policy("organism").model, LoraConfig(task_type="CAUSAL_LM", r=2, **options))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data += 0.01 * torch.randn_like(parameter)
    adapted.save_pretrained(directory)
    return adapted.eval(), str(directory)


def test_a_part_of_an_adapter_is_that_part_of_its_change(tmp_path: Path) -> None:
    """The merged model is the trained one, and half of the change is half of it."""
    adapted, directory = saved_lora(tmp_path, target_modules="all-linear", init_lora_weights="gaussian")
    whole, ids = load_policy("organism", adapter=directory).model, torch.arange(5, 25)[None]
    torch.testing.assert_close(whole(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)
    before = dict(load_policy("organism").model.named_parameters())
    for name, weight in load_policy("organism", adapter=f"{directory}:0.5").model.named_parameters():
        torch.testing.assert_close(weight, torch.lerp(before[name], whole.get_parameter(name), 0.5), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # peft warns of tied weights and goes on
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "trainable tokens"])
def test_an_adapter_of_a_tied_weight(target: str, tmp_path: Path) -> None:
    """Merged into one weight, it would act in the other module too: refused. Replaced tokens act in both anyway."""
    options = {"target_modules": ["q_proj", target]}
    if target == "trainable tokens":
        options = {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]}
    adapted, directory = saved_lora(tmp_path, **options)
    if target == "trainable tokens":
        logits = load_policy("organism", adapter=directory).model(torch.arange(3, 25)[None]).logits
        torch.testing.assert_close(logits, adapted(torch.arange(3, 25)[None]).logits, rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(InputError, match=r"embed_tokens, tied to lm_head"):
            load_policy("organism", adapter=directory)


ADAPTER, ITS_CONFIG = "teacher/adapter_model.safetensors", "teacher/adapter_config.json"
DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("model.safetensors", cut, "incomplete|header"),
    ("model.safetensors", pickled, "no file named model.safetensors"),
    ("tokenizer.json", lambda path: path.write_text("[" * 100_000), "recursion"),
    ("config.json", lambda path: path.write_text("[" * 100_000), "recursion"),
    ("config.json", lambda path: change(path, vocab_size=10**400), "Overflow"),
    (ADAPTER, cut, "expected an adapter of peft"),
    (ADAPTER, Path.unlink, "No such file"),
    (ADAPTER, other_shapes, "an adapter of qwen3, found .*size mismatch"),
    (ADAPTER, a_part, "missing adapter keys"),
    (ITS_CONFIG, lambda path: change(path, target_modules=["q_proj"]), "safetensors: .* others"),
    (ITS_CONFIG, lambda path: path.write_text("[]"), "expected an adapter of peft"),
    (ITS_CONFIG, lambda path: change(path, target_modules=["no_such"]), "adapter"),
    # It changes the base while it is loaded.
    (ITS_CONFIG, lambda path: change(path, init_lora_weights="pissa"), "keeps the base, found .*pissa"),
]


@pytest.mark.parametrize(("name", "damage", "expected"), DAMAGE)
def test_damage_is_one_error(name: str, damage: Callable[[Path], object], expected: str, copied: Path) -> None:
    """Of a model or an adapter."""
    damage(copied / name)
    with pytest.raises(InputError, match=expected):
        load_policy(str(copied), adapter=str(copied / "teacher") if "teacher" in name else None)


@pytest.mark.slow
def test_another_organism_is_built_by_the_command_of_its_page(tmp_path: Path) -> None:
    """One step a stage."""
    steps = [f"--{stage}steps=1" for stage in ("", "teacher-", "polish-")]
    options = ["--seed=1", "--wrong-rate=0.85", *steps, f"--out={tmp_path}"]
    command = [sys.executable, "-m", "spec.organism.build", *options]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3])
    assert load_policy(str(tmp_path), adapter=str(tmp_path / "teacher")).prompt_tail()
