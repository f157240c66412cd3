"""A byte-level BPE tokenizer made from the demonstrations themselves.

Copying is what a tiny policy finds hardest: "take ladle 1 from microwave 2" must repeat a noun and two numbers of the
prompt. So every noun that is ever followed by a number is a piece of its own, and so is every number; one and the
same token then stands in the task, in the observation, in the list of actions and in the answer, where an induction
head can find it. All else (", and a", "; go to", "You arrive at") is boilerplate and merges freely. Byte-level:
any text round-trips, also one that training never showed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|end|>"
"""End of a chat turn, and padding."""
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TAGS = ("<think>", "</think>", "<action>", "</action>")
"""Whole tokens, but not special ones: decoding with skip_special_tokens must keep them, or no answer parses."""
STOP = "</action>"
"""An answer ends with this token."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}" + ASSISTANT + "{% else %}" + USER + "{% endif %}"
    "{{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)
_NUMBERS = 64
"""0..63 are single tokens whatever the texts hold: official kitchens count up to 54 receptacles."""


def counted_nouns(texts: Iterable[str]) -> list[str]:
    """Sorted words that some text follows with a number: the names of things that can be told apart by number."""
    nouns: set[str] = set()
    for text in texts:
        nouns.update(re.findall(r"([A-Za-z]+) \d", text))
    return sorted(nouns)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A fast tokenizer whose vocabulary saturates below `vocab_size` on templated texts.

    Deterministic in the texts and their order. Raises ValueError where there are no texts.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    corpus = list(texts)
    if not corpus:
        raise ValueError("a tokenizer needs texts to train on")
    nouns = counted_nouns(corpus)
    pieces = [r" ?[0-9]+", r"\n", *([rf" ?\b(?:{'|'.join(nouns)})\b"] if nouns else [])]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("|".join(pieces)), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # pyright: ignore[reportAttributeAccessIssue]  # the stubs declare the property read-only
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]  # likewise
    tokenizer.add_special_tokens([END, USER, ASSISTANT])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tags = re.compile("|".join(map(re.escape, TAGS)))
    numbers = [f" {number}" for number in range(_NUMBERS)] * 2
    tokenizer.train_from_iterator([*(part for text in corpus for part in tags.split(text)), *numbers], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False)
    fast.chat_template = CHAT_TEMPLATE
    return fast
