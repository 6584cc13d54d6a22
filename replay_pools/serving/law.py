"""Measure which distribution ("law") a server's log-probabilities belong to.

    model         the model's own law, at temperature 1                   vLLM's default; SGLANG_RETURN_ORIGINAL_LOGPROB
    temperature   after temperature, before top-p and top-k               SGLang's default
    sampler       the law sampled from: after temperature, top-k, top-p   vLLM --logprobs-mode processed_logprobs

A server does not say which (a flag of its command line decides), so it is measured. With a top-p near 0 only the most
likely token is left. Its log-probability is 0 in the law sampled from, the same at two temperatures in the model's own
law, and different at two temperatures in the law between. Not with temperature 0 or top-k 1: servers answer those
greedily, by other code.
"""

from typing import Literal

from replay_pools.rollout import Completion, Sampler
from replay_pools.serving.endpoint import Endpoint

LogprobLaw = Literal["model", "temperature", "sampler"]

ONE_TOKEN = 1e-6  # top-p that leaves only the most likely token
PROBED_TOKENS = 16
TEMPERATURES = (0.5, 2.0)  # vLLM takes none above 2
CERTAIN = 1e-5  # nats below 0: no model is this sure of all PROBED_TOKENS tokens
SAME = 0.05  # nats: the same forward pass in bfloat16 twice differs by less


def measure_law(endpoint: Endpoint, prompt: list[int]) -> LogprobLaw:
    """The law of the log-probabilities that the endpoint reports.

    It is `model`, the weakest claim, when the two temperatures give different tokens.

    Args:
        endpoint: the served model.
        prompt: token ids of any prompt.

    Raises:
        InputError: as `Endpoint.sample`.
    """
    cold, hot = (_most_likely(endpoint, prompt, temperature) for temperature in TEMPERATURES)
    assert cold.logprobs is not None
    assert hot.logprobs is not None
    if min(cold.logprobs + hot.logprobs) > -CERTAIN:
        return "sampler"
    if cold.ids != hot.ids:
        return "model"
    difference = max(abs(at_cold - at_hot) for at_cold, at_hot in zip(cold.logprobs, hot.logprobs, strict=True))
    return "temperature" if difference > SAME else "model"


def _most_likely(endpoint: Endpoint, prompt: list[int], temperature: float) -> Completion:
    """The most likely tokens after a prompt, through the code that samples."""
    sampler = Sampler(temperature=temperature, top_p=ONE_TOKEN, max_new_tokens=PROBED_TOKENS)
    return endpoint.sample([prompt], sampler, [0])[0]


def is_law_of(law: LogprobLaw, sampler: Sampler) -> bool:
    """Whether log-probabilities of `law` are those that `sampler` draws with."""
    truncates = sampler.top_p < 1 or sampler.top_k > 0
    if law == "sampler":
        return True
    if law == "temperature":
        return not truncates
    return not truncates and sampler.temperature == 1
