"""The servers that can be sampled from, in one table: how each is asked for a completion and where its adapters go.

    vLLM     POST /v1/completions, `prompt` a list of ids, `return_token_ids`; OpenAI's form of log-probabilities
    SGLang   POST /generate, its own: `input_ids`, `return_logprob`; its OpenAI form was slow to give ids

Both take sampler settings that are left out from the model's generation config, so every one of them is sent. `n` is
left at 1: each completion is a request with its own seed, since copies within one request may share it.

To add a server: write a function that makes the body of a request, an `Answer` with the paths of its fields, a
`Dialect` with both, add it to DIALECTS, and its name to `ServerKind`: what the server's /v1/models calls `owned_by`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AliasPath, BeforeValidator, Field, model_validator

from replay_pools.engines import Sampler, ServerKind
from replay_pools.serving.replica import TokenId, Wire

# Settings that a Sampler does not have, at the values that leave the law alone.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Answer(Wire):
    """One sampled completion as the server reports it, the same for every dialect; not checked yet."""

    ids: list[TokenId]
    logprobs: list[float]  # nats, one an id, of whichever law the server reports
    finish: str  # finish reason, "stop" or "length" where all is well
    num_prompt_tokens: int


def _number(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


class VllmAnswer(Answer):
    """The answer of vLLM's /v1/completions: its only choice, since `n` is 1."""

    # Not the choices themselves, in which a server may send what it likes.
    num_choices: Annotated[Literal[1], BeforeValidator(_number)] = Field(validation_alias="choices")
    ids: list[TokenId] = Field(validation_alias=AliasPath("choices", 0, "token_ids"))
    logprobs: list[float] = Field(validation_alias=AliasPath("choices", 0, "logprobs", "token_logprobs"))
    finish: str = Field(validation_alias=AliasPath("choices", 0, "finish_reason"))
    num_prompt_tokens: int = Field(validation_alias=AliasPath("usage", "prompt_tokens"))


SGLANG_LOGPROBS = AliasPath("meta_info", "output_token_logprobs")  # rows of log-probability, id, text


def _column(place: int) -> BeforeValidator:
    def values(rows: Any) -> list[Any]:
        if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 for row in rows):
            raise ValueError("rows of log-probability, id and text")
        return [row[place] for row in rows]

    return BeforeValidator(values)


class SglangAnswer(Answer):
    """The answer of SGLang's /generate."""

    ids: list[TokenId] = Field(validation_alias=AliasPath("output_ids"))
    logprobs: Annotated[list[float], _column(0)] = Field(validation_alias=SGLANG_LOGPROBS)
    scored_ids: Annotated[list[TokenId], _column(1)] = Field(validation_alias=SGLANG_LOGPROBS)
    finish: str = Field(validation_alias=AliasPath("meta_info", "finish_reason", "type"))
    num_prompt_tokens: int = Field(validation_alias=AliasPath("meta_info", "prompt_tokens"))

    @model_validator(mode="after")
    def _same_ids(self) -> Self:
        """SGLang answers the ids twice: log-probabilities of other ids must not be taken for theirs."""
        if self.scored_ids != self.ids:
            raise ValueError("output_ids and the ids of output_token_logprobs should be the same")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server: its paths, its requests and answers, and the advice for its refusals."""

    name: ServerKind  # `owned_by` of the server's models
    version_path: str
    completion_path: str
    body: Callable[[str, bool, Sequence[int], Sampler, Sequence[int], int], dict[str, Any]]  # what is posted there
    answer: type[Answer]
    load_path: str  # of adapters
    unload_path: str
    ids_fix: str  # advice when completions come without token ids or log-probabilities
    context_fix: str  # when they are cut short
    adapters_fix: str  # when adapters are refused


def _law(sampler: Sampler, eos_ids: Sequence[int]) -> dict[str, Any]:
    return {
        **NEUTRAL,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k or -1,  # -1 = off
        "stop_token_ids": list(eos_ids),
    }


def _vllm_body(
    model: str, is_adapter: bool, prompt: Sequence[int], sampler: Sampler, eos_ids: Sequence[int], seed: int
) -> dict[str, Any]:
    return {
        **_law(sampler, eos_ids),
        "model": model,
        "prompt": list(prompt),
        "max_tokens": sampler.max_new_tokens,
        "seed": seed,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
    }


def _sglang_body(
    model: str, is_adapter: bool, prompt: Sequence[int], sampler: Sampler, eos_ids: Sequence[int], seed: int
) -> dict[str, Any]:
    parameters = {**_law(sampler, eos_ids), "max_new_tokens": sampler.max_new_tokens, "sampling_seed": seed}
    body = {"input_ids": list(prompt), "sampling_params": parameters, "return_logprob": True}
    if is_adapter:  # a server has one base model, which has no name in a request
        body["lora_path"] = model
    return body


VLLM = Dialect(
    name="vllm",
    version_path="/version",
    completion_path="/v1/completions",
    body=_vllm_body,
    answer=VllmAnswer,
    load_path="/v1/load_lora_adapter",
    unload_path="/v1/unload_lora_adapter",
    ids_fix="vLLM answers `return_token_ids` and `logprobs` from 0.10.2 on",
    context_fix="serve with a larger --max-model-len, or lower --max-new-tokens",
    adapters_fix="serve with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and a --max-lora-rank that suffices",
)
SGLANG = Dialect(
    name="sglang",
    version_path="/server_info",
    completion_path="/generate",
    body=_sglang_body,
    answer=SglangAnswer,
    load_path="/load_lora_adapter",
    unload_path="/unload_lora_adapter",
    ids_fix="SGLang 0.5.23 answers `output_ids` and `return_logprob` on /generate",
    context_fix="serve with a larger --context-length, or lower --max-new-tokens",
    adapters_fix="serve with --enable-lora, --max-lora-rank and --lora-target-modules that suffice",
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
