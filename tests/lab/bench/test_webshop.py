"""The bench on a small index."""

from lab.bench import webshop


def test_the_bench_times_pages_and_ranking(monkeypatch):
    for name, size in {"DOCUMENTS": 500, "VOCABULARY": 1000, "_TASKS": 5, "_QUERIES": 5}.items():
        monkeypatch.setattr(webshop, name, size)
    figures = {figure.name: figure.value for figure in webshop.run()}
    assert len(figures) == 7
    assert "index of 1M products: making its texts and build" in figures
    assert all(value > 0 for value in figures.values())
    assert figures["results page, 1,080 products"] > figures["item page, 1,080 products"]


def test_the_invented_documents_are_always_the_same_and_so_are_their_words():
    first = list(webshop._documents(3))
    assert first == list(webshop._documents(5))[:3]
    assert all(len(text.split()) == webshop.WORDS for _, text in first)
    assert len({webshop._word(number) for number in range(30_000)}) == 30_000
