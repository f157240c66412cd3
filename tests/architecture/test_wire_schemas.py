"""The wire contracts in proto/ equal those that the records generate."""

import json

import jsonschema
import msgspec
import numpy as np
import pytest

from lab.contracts import RECORDS_FILE, record_schemas
from services.records import Drop, Episode, Manifest, Step, Ticket, Version, VersionSpan

VERSION = Version(incarnation=1, step=2, digest="d")
TICKET = Ticket(
    group="eval/2/0.4/7", k=0, size=1, task="alfworld/valid_seen/x", seed=3, kind="eval", exact_version=VERSION,
    temperature=0.4, max_steps=5)
STEP = Step(
    observation="You see a desk.", prompt_ids=np.arange(2, dtype=np.int32), response_ids=np.array([3], np.int32),
    logprobs=np.array([-1.0], np.float32), spans=[VersionSpan(version=VERSION, start=0, end=1)], action="look",
    valid=True, admissible=True, reward=0.0)
RECORDS = {
    "Version": VERSION,
    "Ticket": TICKET,
    "Episode": Episode(
        ticket=TICKET, steps=[STEP], won=True, end="won", worker="w", attempt=1, seconds=0.5, engine="own"),
    "Manifest": Manifest(
        step=1, incarnation=1, groups=["train/00000000"], drops=[Drop(group="train/1", task="x", reason="engine")]),
}


def test_the_schemas_are_what_the_records_generate():
    assert RECORDS_FILE.read_text() == record_schemas(), "python -m lab.contracts, and a line in CHANGELOG"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_fits_its_schema_and_one_with_a_missing_field_does_not(name):
    schema = json.loads(RECORDS_FILE.read_text())
    one = {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
    value = msgspec.json.decode(msgspec.json.encode(RECORDS[name], enc_hook=np.ndarray.tolist))
    jsonschema.validate(value, one)
    required = schema["$defs"][name]["required"][0]
    with pytest.raises(jsonschema.ValidationError, match="required"):
        jsonschema.validate({key: value[key] for key in value if key != required}, one)
