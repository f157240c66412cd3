"""A shop of three products in the official file format, small enough to work out by hand."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envservice.webshop.catalogue import stock
from envservice.webshop.environment import WebshopEnvironment
from envservice.webshop.files import load_stock
from envservice.webshop.nouns import fallback

LAMP: dict[str, Any] = {
    "asin": "B0LAMP",
    "name": "Brisko Cordless Table Lamp",
    "category": "garden",
    "query": " Table Lamps ",
    "product_category": "Home & Kitchen › Lighting › Table Lamps",
    "full_description": "A lamp that goes anywhere.",
    "small_description": ["Dimmable lamp", "Charges by usb", ""],
    "pricing": "$20.50",
    "customization_options": {
        "Color": [{"value": " Red ", "image": None}, {"value": "Black/White"}], "Size": [{"value": "large"}],
        "Fit": None},
    "images": ["a.png"],
    "brand": "dropped",
}
DESK: dict[str, Any] = {
    **LAMP, "asin": "B0DESK", "name": "Quillan Desk Lamp", "pricing": "$10.00$20.00$99", "customization_options": {},
    "small_description": "Lamp for desks", "full_description": None,
}
RUG: dict[str, Any] = {
    **LAMP, "asin": "B0RUG", "name": "Oskavi Area Rug", "query": "area rugs", "pricing": None,
    "product_category": "Home & Kitchen › Rugs › Area Rugs", "customization_options": None, "small_description": [],
    "full_description": "A rug.",
}
SYNTHETIC: dict[str, Any] = {
    "B0LAMP": {"attributes": ["cordless", "dimmable"], "instruction": "Find me cordless table lamps",
               "instruction_attributes": ["cordless"]},
    "B0DESK": {"attributes": []},
}
HUMAN: dict[str, Any] = {
    "B0LAMP": [
        {"asin": "B0LAMP", "instruction": "i want a red lamp.", "instruction_attributes": ["cordless"],
         "instruction_options": ["red"], "attributes": [], "options": []},
        {"asin": "B0LAMP", "instruction": "any lamp", "instruction_attributes": [], "instruction_options": []},
    ],
}


@dataclass
class Files:
    """The three files of a data folder, to be changed before they are written."""

    folder: Path
    products: list[Any]
    synthetic: dict[str, Any]
    human: dict[str, Any]

    def write(self) -> Path:
        contents = {"shuffle_1000": self.products, "ins_v2_1000": self.synthetic, "human_ins": self.human}
        for name, content in contents.items():
            (self.folder / f"items_{name}.json").write_text(json.dumps(content))
        return self.folder


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, *copy.deepcopy(([LAMP, DESK, RUG], SYNTHETIC, HUMAN)))


@pytest.fixture
def shop(files: Files) -> WebshopEnvironment:
    return WebshopEnvironment(load_stock(files.write()), tagger=("endings-1", fallback))


@pytest.fixture(scope="session")
def catalogue_shop() -> WebshopEnvironment:
    return WebshopEnvironment(stock(), tagger=("endings-1", fallback))
