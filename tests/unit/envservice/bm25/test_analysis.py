import pytest

from envservice.bm25.analysis import stem, terms, words

# Of Porter's published samples, one or more for each rule.
STEMS = {
    "caresses": "caress", "ponies": "poni", "ties": "ti", "caress": "caress", "cats": "cat", "feed": "feed", "agreed":
    "agre", "plastered": "plaster", "bled": "bled", "motoring": "motor", "sing": "sing", "conflated": "conflat",
    "troubled": "troubl", "sized": "size", "hopping": "hop", "falling": "fall", "hissing": "hiss", "fizzed": "fizz",
    "failing": "fail", "filing": "file", "happy": "happi", "sky": "sky", "relational": "relat", "conditional":
    "condit", "rational": "ration", "valenci": "valenc", "digitizer": "digit", "radicalli": "radic", "differentli":
    "differ", "vileli": "vile", "analogousli": "analog", "vietnamization": "vietnam", "operator": "oper", "feudalism":
    "feudal", "decisiveness": "decis", "hopefulness": "hope", "callousness": "callous", "formaliti": "formal",
    "sensitiviti": "sensit", "sensibiliti": "sensibl", "triplicate": "triplic", "formative": "form", "formalize":
    "formal", "electrical": "electr", "goodness": "good", "revival": "reviv", "allowance": "allow", "inference":
    "infer", "airliner": "airlin", "adjustable": "adjust", "replacement": "replac", "adjustment": "adjust",
    "adoption": "adopt", "communism": "commun", "activate": "activ", "effective": "effect", "probate": "probat",
    "rate": "rate", "cease": "ceas", "controll": "control", "roll": "roll", "possibly": "possibl", "archaeology":
    "archaeolog", "is": "is", "y": "y", "yes": "ye", "syzygy": "syzygi", "100": "100", "10s": "10", "": "",
}  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), STEMS.items())
def test_a_word_has_the_expected_stem(word: str, expected: str):
    assert stem(word) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("Women's 3/4-sleeve T-Shirt, X-Large", ["women's", "3", "4", "sleeve", "t", "shirt", "x", "large"]),
    ("6.5 wide; 1,000 pcs. a.b c:d", ["6.5", "wide", "1,000", "pcs", "a.b", "c:d"]),
    ("9:30 _x_ x_y 5'11", ["9", "30", "_x_", "x_y", "5'11"]),
    ("½ of 10×20cm — Café ΟΔΟΣ İ", ["of", "10", "20cm", "café", "οδοσ", "i"]),
    ("Brand® ★ 東京 カメラ ひら", ["brand", "®", "★", "東", "京", "カメラ", "ひ", "ら"]),
    ("", []),
])
def test_words_end_where_unicode_says(text: str, expected: list[str]):
    assert words(text) == expected


def test_a_long_word_is_cut_into_words_of_255_characters():
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


def test_possessives_and_stop_words_go():
    assert terms("The dog's bowls are NOT for a cat’s dinner, it's") == ["dog", "bowl", "cat", "dinner"]
