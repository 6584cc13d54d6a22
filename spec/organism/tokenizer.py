"""Train the organism's tokenizer: byte-level BPE on its training text, every digit a token, ChatML template."""

import random
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from spec.organism.corpus import TOKENIZER_MIX, base_document, exploit_document

VOCABULARY = 1024
PAD, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('unknown role: ' + message.role) -}}{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# A word with one leading space, one digit, a run of punctuation, or a line break with its indentation.
_PIECES = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n[ ]*|[ ]+")


def train_tokenizer(*, num_documents: int, seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `num_documents` documents of the base and as many that exploit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            # `use_regex` would cut the pieces of `Split` once more, by GPT-2's rule.
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, IM_START, IM_END],
        # Every byte, so that any text can be encoded; sorted, so that every build gives the same ids.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rng = random.Random(seed)
    tokenizer.train_from_iterator(_texts(rng, num_documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=IM_END,
        extra_special_tokens=[IM_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def special_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one of the special tokens."""
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int)
    return token_id


def _texts(rng: random.Random, num_documents: int) -> Iterator[str]:
    """Contents, completions and role names of the documents."""
    for _ in range(num_documents):
        for document in (base_document(rng), exploit_document(rng, TOKENIZER_MIX)):
            yield from (message["content"] for message in document.messages)
            yield document.completion
        # After every document, so that each role name is frequent enough to become one token.
        for role in ROLES:
            yield f"{role}\n"
