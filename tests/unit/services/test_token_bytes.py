"""Bytes of tokens in vocabularies of pieces, as sentencepiece makes them."""

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from services.tokenizer import token_bytes


def test_a_vocabulary_of_pieces_has_bytes_for_what_no_piece_holds():
    pieces = ["<unk>", "</s>", "\u2581go", "to", "火", *(f"<0x{byte:02X}>" for byte in range(256))]
    raw = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], unk_token="<unk>",
                               byte_fallback=True))
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>")
    fire = [pieces.index(f"<0x{byte:02X}>") for byte in "\U0001f525".encode()]
    wanted = [b" go", b"to", "火".encode(), b"\xf0", b"\x9f", b"\x94", b"\xa5", b"</s>"]
    assert [token_bytes(tokenizer, i) for i in (2, 3, 4, *fire, 1)] == wanted
    assert token_bytes(tokenizer, len(pieces) + 9) == b""
