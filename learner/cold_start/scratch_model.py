"""A small Qwen2-architecture policy with fresh weights, so that the default run needs no download, and its tokenizer.

The tokenizer is trained on the demonstrations. Copying is the hardest part for a tiny policy: "take ladle 1 from
microwave 2" must repeat two nouns and two numbers of the prompt. So every noun that a number ever follows is one token,
and so is every number up to 63. The same token then occurs in the task, the observation, the choices and the answer, so
an induction head can find it. The text between them (", and a", "; go to", "</think><action>take") is boilerplate. Its
frequent pieces are tokens too, which shortens prompts and answers. The longest match wins. A byte-level BPE encodes any
other text.

If objects have no numbers (names "words"), a larger BPE makes each frequent word a token, and so is [text in brackets]:
pages show clickable things in this form, and answers name them in it.

These are added tokens and not a special pre-tokenizer, because transformers and vLLM load every Qwen2 model's tokenizer
with Qwen2's own pre-tokenizer and normalizer, whatever tokenizer.json says. Both treat added tokens the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from services.config.tree import ModelSection
from services.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|endoftext|>"
"""End of a chat turn, and padding."""
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
STOP = "</action>"
"""Token that ends an answer. It is not a special token, because decoding with skip_special_tokens must keep it."""
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
"""The numbers 0 to 63 are always tokens, because official kitchens have up to 54 receptacles of a kind."""
_PHRASES = 192
"""Largest number of boilerplate pieces that become tokens."""
_BASE = 384
"""Number of tokens of the BPE: 256 bytes and the most frequent merges."""
_WORDS = 2048
"""Number of tokens of the BPE if words should be tokens."""
_BRACKETED = 1536
"""Largest number of bracketed names that become tokens, the most frequent first."""
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Sizes of an attention head that the CPU sampler has kernels for."""


def scratch_model(
    section: ModelSection, tokenizer: PreTrainedTokenizerFast, *, max_positions: int, seed: int
) -> Qwen2ForCausalLM:
    """Returns a model with float32 weights drawn from `seed`. The tokenizer gives vocabulary, end and padding token.

    Raises UserError if hidden / heads is not a head size that the sampler serves.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    if section.hidden % section.heads or section.hidden // section.heads not in HEAD_SIZES:
        raise UserError(
            f"model.hidden={section.hidden} and model.heads={section.heads} make heads that the sampler cannot serve",
            f"choose them so that hidden / heads is one of {', '.join(map(str, HEAD_SIZES))}")
    end = tokenizer.get_vocab()[END]
    config = scratch_config(section, vocabulary=len(tokenizer), max_positions=max_positions, end=end)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def scratch_config(section: ModelSection, *, vocabulary: int, max_positions: int, end: int) -> Qwen2Config:
    """Returns the config of a scratch model. `end`: id of END, which ends a chat turn and pads."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=section.hidden, intermediate_size=section.intermediate,
        num_hidden_layers=section.layers, num_attention_heads=section.heads, num_key_value_heads=section.heads,
        max_position_embeddings=max_positions, tie_word_embeddings=section.tie_embeddings,
        bos_token_id=None, eos_token_id=end, pad_token_id=end,
        use_cache=True, dtype="float32")


def numbered_nouns(texts: Iterable[str]) -> list[str]:
    """Returns the sorted words that a number follows in some text: names of objects that are numbered."""
    nouns: set[str] = set()
    for text in texts:
        nouns.update(re.findall(r"([A-Za-z]+) \d", text))
    return sorted(nouns)


def boilerplate(texts: Iterable[str], nouns: Sequence[str], stops: Sequence[str] = (STOP,)) -> list[str]:
    """Returns the texts that save most characters as tokens, longest first.

    They are chosen from the pieces of text between nouns and numbers, and from the lines of these pieces.
    """
    names = rf" (?:{'|'.join(nouns)})\b|" if nouns else ""
    between = re.compile(rf"{names} [0-9]+|{'|'.join(map(re.escape, stops))}")
    counts: Counter[str] = Counter()
    for text in texts:
        pieces = between.split(text)
        counts.update(pieces)
        counts.update(line for piece in pieces if "\n" in piece for line in re.split(r"(?<=\n)", piece))
    saved = {piece: (len(piece) - 1) * count for piece, count in counts.items() if len(piece) > 1 and count > 1}
    best = sorted(saved, key=lambda piece: (-saved[piece], piece))[:_PHRASES]
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
    texts: Iterable[str], stops: Sequence[str] = (STOP,), names: Literal["numbered", "words", "both"] = "numbered"
) -> PreTrainedTokenizerFast:
    """Returns a fast tokenizer of some hundreds or thousands of tokens. It decodes any text to Unicode's NFC form.

    Each of `stops`, the tags that may end an answer, is one token. `names`: see Teacher in envservice/spec.py; both:
    texts of several environments. The result depends only on the texts and their order. Raises ValueError if there are
    no texts.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    corpus = list(texts)
    if not corpus:
        raise ValueError("a tokenizer needs texts to train on")
    tokenizer = _base(corpus, _BASE if names == "numbered" else _WORDS)
    added = [*stops, *(_numbered(corpus, stops) if names != "words" else ()),
             *(bracketed(corpus) if names != "numbered" else ())]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in dict.fromkeys(added)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=END, clean_up_tokenization_spaces=False,
        additional_special_tokens=[USER, ASSISTANT])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _numbered(corpus: list[str], stops: Sequence[str]) -> list[str]:
    nouns = numbered_nouns(corpus)
    return [*(f" {noun}" for noun in nouns), *(f" {n}" for n in range(_NUMBERS)), *boilerplate(corpus, nouns, stops)]


def _base(corpus: list[str], size: int) -> Any:
    """Trains a byte-level BPE behind Qwen2's normalizer and pre-tokenizer."""
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
