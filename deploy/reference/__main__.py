"""`python -m deploy.reference` writes docs/reference/; tests/architecture/test_reference.py checks that it is
current."""

from __future__ import annotations

from deploy.reference.pages import FOLDER, pages


def main() -> None:
    """Writes every page, and prints its path."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
