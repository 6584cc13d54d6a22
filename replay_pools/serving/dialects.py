"""The servers that can be sampled from, in one table: how each is asked for a completion and where its adapters go.

    vLLM     POST /v1/completions, `prompt` a list of ids, `return_token_ids`; OpenAI's form of log-probabilities
    SGLang   POST /generate, its own: `input_ids`, `return_logprob`; its OpenAI form was slow to give ids

Both take sampler settings that are left out from the model's generation config, so every one of them is sent. `n` is
left at 1: each completion is a request with its own seed, since copies within one request may share it.

To add a server: write a function that makes the body of a request, a `CompletionWire` that reads the answer, a
`Dialect` with both, and add it to DIALECTS. Its name there is what the server's /v1/models calls `owned_by`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from replay_pools.rollout import Sampler
from replay_pools.serving.connection import TokenId, Wire

# Settings that a Sampler does not have, at the values that leave the law alone.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model or an adapter, by its name on the server."""

    name: str
    is_adapter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The request for one completion, before a dialect makes its body."""

    model: ServedModel
    prompt: Sequence[int]  # token ids
    sampler: Sampler
    eos_ids: Sequence[int]  # where a turn ends
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sampled completion as the server reports it, the same for every dialect; not checked yet."""

    ids: list[int]
    logprobs: list[float]  # nats, one an id, of whichever law the server reports
    finish: str  # finish reason, "stop" or "length" where all is well
    num_prompt_tokens: int


class CompletionWire(Wire):
    """The JSON of a completion in one dialect. A subclass declares its fields and says how they make an Answer."""

    @abstractmethod
    def read(self) -> Answer:
        """The completion in the terms of all dialects."""


class _VllmLogprobs(Wire):
    token_logprobs: list[float]


class _VllmChoice(Wire):
    token_ids: list[TokenId]
    logprobs: _VllmLogprobs
    finish_reason: str


class _VllmUsage(Wire):
    prompt_tokens: int


class VllmCompletion(CompletionWire):
    """The answer of vLLM's /v1/completions."""

    choices: list[_VllmChoice] = Field(min_length=1, max_length=1)
    usage: _VllmUsage

    def read(self) -> Answer:
        """The only choice, since `n` is 1."""
        choice = self.choices[0]
        return Answer(
            ids=choice.token_ids,
            logprobs=choice.logprobs.token_logprobs,
            finish=choice.finish_reason,
            num_prompt_tokens=self.usage.prompt_tokens,
        )


class _SglangFinish(Wire):
    type: str


class _SglangMeta(Wire):
    prompt_tokens: int
    finish_reason: _SglangFinish
    output_token_logprobs: list[tuple[float, int, str | None]]  # log-probability, id, text


class SglangCompletion(CompletionWire):
    """The answer of SGLang's /generate."""

    output_ids: list[TokenId]
    meta_info: _SglangMeta

    @model_validator(mode="after")
    def _same_ids(self) -> Self:
        """SGLang answers the ids twice: log-probabilities of other ids must not be taken for theirs."""
        if [token for _, token, _ in self.meta_info.output_token_logprobs] != self.output_ids:
            raise ValueError("output_ids and the ids of output_token_logprobs should be the same")
        return self

    def read(self) -> Answer:
        """The only completion, since `n` is 1."""
        meta = self.meta_info
        return Answer(
            ids=self.output_ids,
            logprobs=[logprob for logprob, _, _ in meta.output_token_logprobs],
            finish=meta.finish_reason.type,
            num_prompt_tokens=meta.prompt_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server: its paths, its requests and answers, and the advice for its refusals."""

    name: str  # `owned_by` of the server's models
    version_path: str
    completion_path: str
    body: Callable[[Query], dict[str, Any]]  # the JSON that is posted to completion_path
    wire: type[CompletionWire]  # the form of its answer
    load_path: str  # of adapters
    unload_path: str
    ids_fix: str  # advice when completions come without token ids or log-probabilities
    context_fix: str  # when they are cut short
    adapters_fix: str  # when adapters are refused


def _vllm_body(query: Query) -> dict[str, Any]:
    return {
        **NEUTRAL,
        "model": query.model.name,
        "prompt": list(query.prompt),
        "max_tokens": query.sampler.max_new_tokens,
        "temperature": query.sampler.temperature,
        "top_p": query.sampler.top_p,
        "top_k": query.sampler.top_k or -1,  # -1 = off
        "seed": query.seed,
        "stop_token_ids": list(query.eos_ids),
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
    }


def _sglang_body(query: Query) -> dict[str, Any]:
    parameters = {
        **NEUTRAL,
        "max_new_tokens": query.sampler.max_new_tokens,
        "temperature": query.sampler.temperature,
        "top_p": query.sampler.top_p,
        "top_k": query.sampler.top_k or -1,  # -1 = off
        "sampling_seed": query.seed,
        "stop_token_ids": list(query.eos_ids),
    }
    body = {"input_ids": list(query.prompt), "sampling_params": parameters, "return_logprob": True}
    if query.model.is_adapter:  # a server has one base model, which has no name in a request
        body["lora_path"] = query.model.name
    return body


VLLM = Dialect(
    name="vllm",
    version_path="/version",
    completion_path="/v1/completions",
    body=_vllm_body,
    wire=VllmCompletion,
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
    wire=SglangCompletion,
    load_path="/load_lora_adapter",
    unload_path="/unload_lora_adapter",
    ids_fix="SGLang 0.5.23 answers `output_ids` and `return_logprob` on /generate",
    context_fix="serve with a larger --context-length, or lower --max-new-tokens",
    adapters_fix="serve with --enable-lora, --max-lora-rank and --lora-target-modules that suffice",
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
