"""Text of others on a terminal."""

from deploy.console.printable import printable


def test_only_line_ends_and_tabs_are_obeyed():
    assert printable("a b\n\tü 漢") == "a b\n\tü 漢"
    assert printable("\x1b[2J\r\x07\x9b\u202e\x7f") == "�[2J�����"
