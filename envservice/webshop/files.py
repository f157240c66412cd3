"""Reads the official WebShop files in one pass, record by record, so that only the parts that are kept take memory.

    <data>/items_shuffle_1000.json, items_ins_v2_1000.json      the first thousand products ("small")
    <data>/items_shuffle.json, items_ins_v2.json                all 1.18 million ("all")
    <data>/items_human_ins.json                                 instructions by people, only needed for human goals

An error in a record is reported in one line that names file, product and field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import ijson

from envservice.webshop.products import NO_ATTRIBUTES, Instruction, Product, Stock, listed, parse_product, texts
from services.errors import UserError

Size = Literal["small", "all"]
Goals = Literal["synthetic", "human"]
_FILES: dict[Size, tuple[str, str]] = {
    "small": ("items_shuffle_1000.json", "items_ins_v2_1000.json"),
    "all": ("items_shuffle.json", "items_ins_v2.json"),
}
_HUMAN = "items_human_ins.json"
DOWNLOAD = "get it as the WebShop repository's setup.sh does, or leave the data folder out for our own catalogue"


def load_stock(data: Path, *, size: Size = "small", goals: Goals = "synthetic") -> Stock:
    """Reads products and instructions of a data folder. Raises UserError for missing and for malformed files."""
    products_file, synthetic_file = (data / name for name in _FILES[size])
    synthetic = _synthetic(synthetic_file)
    products = tuple(_products(products_file, {asin: attributes for asin, (attributes, _) in synthetic.items()}))
    if goals == "synthetic":
        asked = {asin: [each] for asin, (_, each) in synthetic.items() if each is not None}
    else:
        asked = _human(data / _HUMAN)
    instructions = tuple(
        Instruction(product=number, text=text, attributes=attributes, options=options)
        for number, product in enumerate(products)
        for text, attributes, options in asked.get(product.asin, ())
    )
    if not instructions:
        raise UserError(f"{data} has no {goals} instruction for any of its {len(products)} products", DOWNLOAD)
    return Stock(source="official", products=products, instructions=instructions)


_Asked = tuple[str, tuple[str, ...], tuple[str, ...] | None]
"""An instruction: its text, attributes and option values. None: options are not given, as in synthetic instructions."""


def _products(file: Path, attributes: Mapping[str, tuple[str, ...]]) -> Iterator[Product]:
    seen: set[str] = set()
    with _reading(file) as stream:
        for number, record in enumerate(ijson.items(stream, "item", use_float=True)):
            asin = record.get("asin") if isinstance(record, dict) else None
            where = f"{file}: product {asin if isinstance(asin, str) and asin else number}"
            if isinstance(asin, str) and (not listed(asin) or asin in seen):
                continue
            listed_attributes = attributes.get(asin, NO_ATTRIBUTES) if isinstance(asin, str) else NO_ATTRIBUTES
            product = parse_product(record, listed_attributes, where)
            seen.add(product.asin)
            yield product
    if not seen:
        raise UserError(f"{file} holds no product", DOWNLOAD)


def _synthetic(file: Path) -> dict[str, tuple[tuple[str, ...], _Asked | None]]:
    """Maps each ASIN to its attributes and its instruction, None if it has none."""
    by_asin: dict[str, tuple[tuple[str, ...], _Asked | None]] = {}
    with _reading(file) as stream:
        for asin, record in ijson.kvitems(stream, "", use_float=True):
            where = f"{file}: product {asin}"
            _check_object(record, where)
            listed_there = "attributes" in record
            attributes = texts(record["attributes"], f"{where}: attributes") if listed_there else NO_ATTRIBUTES
            asked = None
            if record.get("instruction") is not None:
                asked = (_string(record, "instruction", where), _wanted(record, where), None)
                if not asked[1]:
                    raise UserError(f"{where}: instruction_attributes is empty", DOWNLOAD)
            by_asin[asin] = attributes, asked
    return by_asin


def _human(file: Path) -> dict[str, list[_Asked]]:
    """Maps each ASIN to the instructions by people. Instructions without an attribute are left out: they set no
    goal."""
    by_asin: dict[str, list[_Asked]] = {}
    with _reading(file) as stream:
        for asin, records in ijson.kvitems(stream, "", use_float=True):
            where = f"{file}: product {asin}"
            if not isinstance(records, list):
                raise UserError(f"{where} is not a list", DOWNLOAD)
            for record in records:
                _check_object(record, where)
                wanted = _wanted(record, where)
                options = texts(record.get("instruction_options"), f"{where}: instruction_options")
                if wanted:
                    text = _string(record, "instruction", where).strip(".")
                    by_asin.setdefault(asin, []).append((text, wanted, options))
    return by_asin


def _wanted(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    return texts(record.get("instruction_attributes"), f"{where}: instruction_attributes")


def _string(record: Mapping[str, Any], field: str, where: str) -> str:
    if not isinstance(record.get(field), str):
        raise UserError(f"{where}: {field} is not a string", DOWNLOAD)
    return record[field]


def _check_object(record: Any, where: str) -> None:
    if not isinstance(record, dict):
        raise UserError(f"{where} is not an object", DOWNLOAD)


@contextmanager
def _reading(file: Path) -> Iterator[Any]:
    try:
        with file.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", DOWNLOAD) from None
    except (ijson.JSONError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is broken: {' '.join(str(error).split())}", DOWNLOAD) from None
