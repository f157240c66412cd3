"""The bench on a small size; its real size is run by hand."""

from lab.bench import learner


def test_repeated_tokens_are_those_of_prefixes_that_an_earlier_row_of_the_group_has():
    """By hand: of the second row two tokens of four, of the third all three; in the other group none."""
    group = [([1, 2, 3], [4]), ([1, 2, 5], [4]), ([1, 2], [3])]
    assert learner.repeated([group]) == 5 / 11
    assert learner.repeated([group, [([1, 2, 3], [4])]]) == 5 / 15
    assert learner.repeated([[([2, 1], [3]), ([1, 2], [3])]]) == 0


def test_a_transcript_is_computed_once():
    """By hand: turns of 3, 2 and 1 tokens make rows of 3, 5 and 6 tokens, and 6 of these 14 are computed."""
    episode = [([1, 2], [3]), ([4], [5]), ([], [6])]
    assert learner.transcript_share([episode]) == 1 - 6 / 14
    assert learner.transcript_share([episode, [([1], [2])]]) == 1 - 8 / 16


def test_both_passes_agree_and_padding_is_counted(monkeypatch):
    monkeypatch.setattr(learner, "TIMES", 1)
    monkeypatch.setattr(learner, "TOKEN_BUDGET", 64)
    monkeypatch.setattr(learner, "MODEL", learner.MODEL | {"hidden_size": 16, "intermediate_size": 32,
                                                           "num_hidden_layers": 1, "vocab_size": 50})
    rows = [([3, 4, 5] * n, [6, 7]) for n in (1, 2, 6)]
    speed, padding = learner._speed(rows)
    assert speed.ratio > 0
    assert padding.value == 100 * (1 - (5 + 8 + 20) / 60)
