"""`python -m deploy.reference` writes docs/reference/ anew; tests/architecture/test_reference.py holds it equal."""

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
