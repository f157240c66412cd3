"""The official instruction file of the first thousand products, read by our loader.

The product file itself cannot be had here, so each of its products is stood in for by a record without options.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from envservice.webshop.files import load_stock
from envservice.webshop.goals import Goals

FILE = Path(os.environ.get("WEBSHOP_DATA", "")) / "items_ins_v2_1000.json"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="needs items_ins_v2_1000.json in $WEBSHOP_DATA")


@pytest.fixture
def stock(tmp_path):
    shutil.copy(FILE, tmp_path)
    records = [
        {"asin": asin, "name": "A thing", "category": "garden", "query": "things", "product_category": "Home",
         "full_description": "", "small_description": [], "pricing": "$5.00", "customization_options": {}}
        for asin in json.loads(FILE.read_text())
    ]
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(records))
    return load_stock(tmp_path)


def test_products_attributes_and_instructions_are_as_many_as_the_file_has(stock):
    assert len(stock.products) == 1000
    assert sum(not product.attributes for product in stock.products) == 185
    assert len(stock.instructions) == len(Goals(stock)) == 415


def test_an_instruction_is_read_to_the_letter(stock):
    asked = next(each for each in stock.instructions if stock.products[each.product].asin == "B07DJJXGB5")
    assert asked.text == "Find me scrubs & body treatments with tea tree, natural ingredients"
    assert asked.attributes == ("tea tree", "natural ingredients")
    assert stock.products[asked.product].attributes == ("tea tree", "essential oils", "natural ingredients")
