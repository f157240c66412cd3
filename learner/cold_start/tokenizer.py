"""A small tokenizer made from the demonstrations themselves.

Copying is what a tiny policy finds hardest: "take ladle 1 from microwave 2" must repeat two nouns and two numbers of
the prompt. So every noun that is ever followed by a number is a token, and so is every number; one and the same token
then stands in the task, in the observation, in the choices and in the answer, where an induction head can find it.
What stands between them (", and a", "; go to", "</think><action>take") is boilerplate: its frequent pieces are tokens
too, which shortens prompts and answers. All these are ordinary added tokens, matched longest first; a byte-level BPE
below them takes any other text.

Where things have no numbers (names "words"), a larger BPE makes each frequent word a token, and [what stands in
brackets] is one too: pages show so what can be clicked, and answers name it so.

Added tokens rather than a pre-tokenizer of our own, because transformers and vLLM load every Qwen2 model's tokenizer
with Qwen2's own pre-tokenizer and normalizer, whatever tokenizer.json says; these here are the same for both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
"""End of a chat turn, and padding."""
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
STOP = "</action>"
"""An answer ends with such a token. Not a special one: decoding with skip_special_tokens must keep it."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}" + ASSISTANT + "{% else %}" + USER + "{% endif %}"
    "{{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NUMBERS = 64
"""0..63 are tokens whatever the texts hold: official kitchens count up to 54 receptacles."""
_PHRASES = 192
_BASE = 384
"""Tokens of the BPE below: 256 bytes, and the most frequent merges."""
_WORDS = 2048
"""The same where words are to be tokens."""
_BRACKETED = 1536
"""At most so many bracketed names, the most frequent."""


def counted_nouns(texts: Iterable[str]) -> list[str]:
    """Sorted words that some text follows with a number: the names of things that can be told apart by number."""
    nouns: set[str] = set()
    for text in texts:
        nouns.update(re.findall(r"([A-Za-z]+) \d", text))
    return sorted(nouns)


def boilerplate(texts: Iterable[str], nouns: Sequence[str], stops: Sequence[str] = (STOP,)) -> list[str]:
    """The pieces between nouns and numbers that save most, longest first: whole ones, and their lines."""
    names = rf" (?:{'|'.join(nouns)})\b|" if nouns else ""
    between = re.compile(rf"{names} [0-9]+|{'|'.join(map(re.escape, stops))}")
    counts: Counter[str] = Counter()
    for text in texts:
        pieces = between.split(text)
        counts.update(pieces)
        counts.update(line for piece in pieces if "\n" in piece for line in re.split(r"(?<=\n)", piece))
    worth = {piece: (len(piece) - 1) * count for piece, count in counts.items() if len(piece) > 1 and count > 1}
    best = sorted(worth, key=lambda piece: (-worth[piece], piece))[:_PHRASES]
    return sorted(best, key=lambda piece: (-len(piece), piece))


def bracketed(texts: Iterable[str]) -> list[str]:
    """Returns repeated runs of tags, the longest first, then repeated texts in brackets, most frequent first."""
    names: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    for text in texts:
        names.update(re.findall(r"(?<!\S)\[[^\[\]\n]{1,32}\]", text))
        tags.update(re.findall(r"(?:</?[a-z]+>)+", text))
    best = sorted((name for name in names if names[name] > 1), key=lambda name: (-names[name], name))[:_BRACKETED]
    return [*sorted((tag for tag in tags if tags[tag] > 1), key=lambda tag: (-len(tag), tag)), *best]


def train_tokenizer(
    texts: Iterable[str], stops: Sequence[str] = (STOP,), names: Literal["numbered", "words"] = "numbered"
) -> PreTrainedTokenizerFast:
    """A fast tokenizer of some hundreds or thousands of tokens. It gives back any text in Unicode's NFC form.

    Each of `stops`, the tags that an answer may end with, is one token. `names`: envservice/spec.py, Teacher.

    Deterministic in the texts and their order. Raises ValueError where there are no texts.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    corpus = list(texts)
    if not corpus:
        raise ValueError("a tokenizer needs texts to train on")
    tokenizer = _base(corpus, _BASE if names == "numbered" else _WORDS)
    whole = [*stops, *(_numbered(corpus, stops) if names == "numbered" else bracketed(corpus))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in dict.fromkeys(whole)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=END, clean_up_tokenization_spaces=False,
        additional_special_tokens=[USER, ASSISTANT])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _numbered(corpus: list[str], stops: Sequence[str]) -> list[str]:
    nouns = counted_nouns(corpus)
    return [*(f" {noun}" for noun in nouns), *(f" {n}" for n in range(_NUMBERS)), *boilerplate(corpus, nouns, stops)]


def _base(corpus: list[str], size: int) -> Any:
    """Byte-level BPE behind Qwen2's normalizer and pre-tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer
