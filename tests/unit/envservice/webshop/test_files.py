"""Official files: what is kept of them, and what is said about broken ones."""

import json

import pytest

from envservice.webshop.files import load_stock
from services.errors import UserError


def test_a_product_is_read_by_the_rules_of_the_original(files):
    lamp, desk, rug = load_stock(files.write()).products
    assert (lamp.asin, lamp.title, lamp.query) == ("B0LAMP", "Brisko Cordless Table Lamp", "table lamps")
    assert lamp.options == {"color": ("red", "black | white"), "size": ("large",)}
    assert lamp.attributes == ("cordless", "dimmable")
    assert (lamp.prices, lamp.price_tag) == ((20.5,), "$20.5")
    assert (desk.prices, desk.price_tag) == ((10.0, 20.0), "$10.0 to $20.0")
    assert (desk.bullets, desk.description, desk.attributes) == (("Lamp for desks",), "", ())
    assert (rug.prices, rug.price_tag) == ((100.0,), "$100.0")
    assert (rug.bullets, rug.options, rug.attributes) == ((), {}, ("DUMMY_ATTR",))


def test_ranking_sees_title_description_first_bullet_and_options(files):
    lamp = load_stock(files.write()).products[0]
    assert lamp.document() == (
        "brisko cordless table lamp a lamp that goes anywhere. dimmable lamp "
        "color: red, black | white, and size: large")


def test_repeated_and_unnamed_products_are_passed_over(files):
    files.products += [{**files.products[0], "name": "again"}, {"asin": "nan"}, {"asin": "B0123456789"}]
    assert [product.asin for product in load_stock(files.write()).products] == ["B0LAMP", "B0DESK", "B0RUG"]


def test_a_person_who_names_no_attribute_sets_no_goal(files):
    (asked,) = load_stock(files.write(), goals="human").instructions
    assert (asked.product, asked.text) == (0, "i want a red lamp")
    assert (asked.attributes, asked.options) == (("cordless",), ("red",))


def test_synthetic_goals_need_no_human_file(files):
    (files.write() / "items_human_ins.json").unlink()
    assert load_stock(files.folder).instructions[0].text == "Find me cordless table lamps"
    with pytest.raises(UserError, match=r"there is no file .*items_human_ins\.json"):
        load_stock(files.folder, goals="human")


def test_fields_that_are_not_kept_do_not_change_the_digest(files):
    first = load_stock(files.write()).digest
    files.products[0]["total_reviews"] = 12
    assert load_stock(files.write()).digest == first
    files.products[0]["small_description"][1] = "Charges by sun"
    assert load_stock(files.write()).digest != first


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("name", None, "product B0LAMP: name is not a string"),
        ("query", 3, "product B0LAMP: query is not a string"),
        ("product_category", ..., "product B0LAMP: product_category is missing"),
        ("pricing", "cheap", "product B0LAMP: pricing is not a price: 'cheap'"),
        ("pricing", 12, "product B0LAMP: pricing is not a price: 12"),
        ("small_description", [1], "product B0LAMP: small_description is not a list of strings"),
        ("customization_options", {"Size": ["large"]}, "product B0LAMP: customization_options are not lists"),
        ("customization_options", ["large"], "product B0LAMP: customization_options are not lists"),
        ("asin", ..., "product 0: asin is missing"),
        ("asin", ["B0LAMP"], "product 0: asin is not a string"),
    ],
)
def test_a_malformed_product_is_named_in_one_line(files, field, value, complaint):
    files.products[0][field] = value
    if value is ...:
        del files.products[0][field]
    with pytest.raises(UserError, match=complaint) as error:
        load_stock(files.write())
    assert "items_shuffle_1000.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ([], "B0LAMP is not an object"),
        ({"attributes": "cordless"}, "B0LAMP: attributes is not a list of strings"),
        ({"instruction": "Find me", "instruction_attributes": []}, "B0LAMP: instruction_attributes is empty"),
        ({"instruction": "Find me"}, "B0LAMP: instruction_attributes is not a list of strings"),
        ({"instruction": 1, "instruction_attributes": []}, "B0LAMP: instruction is not a string"),
    ],
)
def test_a_malformed_instruction_is_named_in_one_line(files, record, complaint):
    files.synthetic["B0LAMP"] = record
    with pytest.raises(UserError, match=complaint):
        load_stock(files.write())


@pytest.mark.parametrize(("text", "complaint"), [
    ("", "is broken"), ('[{"asin": ', "is broken"), ("{}", "holds no product"), ("[]", "holds no product"),
    ("[3]", "product 0 is not an object"), ('["\\ud800"]', "product 0 is not an object|is broken")])
def test_a_damaged_file_is_named_in_one_line(files, text, complaint):
    (files.write() / "items_shuffle_1000.json").write_text(text)
    with pytest.raises(UserError, match=complaint) as error:
        load_stock(files.folder)
    assert "\n" not in str(error.value)


def test_a_file_cut_short_is_broken(files):
    file = files.write() / "items_shuffle_1000.json"
    file.write_text(json.dumps(files.products)[:-2])
    with pytest.raises(UserError, match=r"items_shuffle_1000\.json is broken"):
        load_stock(files.folder)


def test_files_without_instructions_are_refused(files):
    files.synthetic = {}
    with pytest.raises(UserError, match="no synthetic instruction for any of its 3 products"):
        load_stock(files.write())
