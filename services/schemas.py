"""The wire contracts of the records as JSON Schema: `python -m services.schemas` writes proto/records.schema.json.

On the wire, tickets, turns and episodes are msgpack (episodes compressed with zstd); manifests and the version are
JSON. The fields are the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from services.records import Drop, Episode, Manifest, PlayedTurn, Ticket, Version

RECORDS = (Ticket, Episode, Manifest, Drop, Version, PlayedTurn)
FILE = Path(__file__).parents[1] / "proto" / "records.schema.json"


def _array(kind: type) -> dict[str, Any]:
    if kind is not np.ndarray:
        raise NotImplementedError(f"no schema for {kind.__name__}")
    return {
        "type": "array",
        "items": {"type": "number"},
        "description": "msgpack extension 1: `<numpy dtype>:<sizes, comma-separated>:`, then the raw bytes",
    }


def record_schemas() -> str:
    """Returns the text of proto/records.schema.json."""
    _, components = msgspec.json.schema_components(RECORDS, schema_hook=_array, ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gagpo records",
        "oneOf": [{"$ref": f"#/$defs/{record.__name__}"} for record in RECORDS],
        "$defs": components,
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(record_schemas(), encoding="utf-8")
