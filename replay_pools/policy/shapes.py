"""Shapes of published models, so that a run can be planned without their files: the numbers of their config.json.

They do not change: a published model with another shape has another name. Weights, tokenizer and everything that is
sampled or trained come from the model itself.
"""

from collections.abc import Mapping
from typing import Any

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-4B": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
}
