"""The supported kinds of server: how to request a completion and how to load adapters.

    vLLM     POST /v1/completions, `prompt` a list of ids, `return_token_ids`; log-probabilities as OpenAI's
    SGLang   POST /generate: `input_ids`, `return_logprob`

Both read missing sampler settings from the model's generation config, so every setting is sent. Each completion is one
request (`n` = 1) with one seed, because copies within a request may share it.

To add a server, write a function for the request's body, an `Answer` with the paths of its fields and a `Dialect` with
both. Add it to DIALECTS and its name, the `owned_by` of the server's /v1/models, to `ServerKind`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AliasPath, BeforeValidator, Field, model_validator

from replay_pools.engines import Sampler, ServerKind
from replay_pools.serving.replica import TokenId, Wire

# Settings that a Sampler lacks, at the values that leave the distribution unchanged.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Answer(Wire):
    """One sampled completion as reported by any kind of server; not checked yet."""

    ids: list[TokenId]
    logprobs: list[float]  # nats, one an id; `ServerEngine.law` names their distribution
    finish: str  # finish reason, normally "stop" or "length"
    num_prompt_tokens: int


def _number(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


class VllmAnswer(Answer):
    """The answer of vLLM's /v1/completions, with one choice because `n` is 1."""

    # The number alone: unread fields of a choice may hold anything.
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
        """Check that the two lists of ids in SGLang's answer agree, so that log-probabilities belong to the ids."""
        if self.scored_ids != self.ids:
            raise ValueError("output_ids and the ids of output_token_logprobs should be the same")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server: its paths, requests, answers, and advice for its refusals."""

    name: ServerKind  # `owned_by` of the server's models
    version_path: str
    completion_path: str
    body: Callable[[str, bool, Sequence[int], Sampler, Sequence[int], int], dict[str, Any]]  # makes the posted JSON
    answer: type[Answer]
    load_path: str  # loads an adapter
    unload_path: str
    ids_fix: str  # advice for completions without token ids or log-probabilities
    context_fix: str  # advice for truncated completions
    adapters_fix: str  # advice for refused adapters


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
        "logprobs": 0,  # only the sampled token's
        "return_token_ids": True,
    }


def _sglang_body(
    model: str, is_adapter: bool, prompt: Sequence[int], sampler: Sampler, eos_ids: Sequence[int], seed: int
) -> dict[str, Any]:
    parameters = {**_law(sampler, eos_ids), "max_new_tokens": sampler.max_new_tokens, "sampling_seed": seed}
    body = {"input_ids": list(prompt), "sampling_params": parameters, "return_logprob": True}
    if is_adapter:  # requests do not name the only base model
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
    ids_fix="use vLLM 0.10.2 or later, which answers `return_token_ids` and `logprobs`",
    context_fix="serve with a larger --max-model-len, or lower --max-new-tokens",
    adapters_fix="serve with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and a sufficient --max-lora-rank",
)
SGLANG = Dialect(
    name="sglang",
    version_path="/server_info",
    completion_path="/generate",
    body=_sglang_body,
    answer=SglangAnswer,
    load_path="/load_lora_adapter",
    unload_path="/unload_lora_adapter",
    ids_fix="use SGLang 0.5.23 or later, which answers `output_ids` and `return_logprob` on /generate",
    context_fix="serve with a larger --context-length, or lower --max-new-tokens",
    adapters_fix="serve with --enable-lora and sufficient --max-lora-rank and --lora-target-modules",
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
