"""JSON Schemas of Python types, such that what fits them can be read back."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue


class ReadableSchema(GenerateJsonSchema):
    """pydantic's schemas without what its own types reject: decimals are numbers, not any text."""

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """A number; ``decimal_places`` as a step."""
        found: JsonSchemaValue = super().decimal_schema(schema)
        options = [one for one in found.get("anyOf", [found]) if one.get("type") == "number"]
        number = dict(options[0]) if options else {"type": "number"}
        if "decimal_places" in schema:
            number.setdefault("multipleOf", float(f"1e-{schema['decimal_places']}"))
        if "max_digits" in schema:
            whole = schema["max_digits"] - schema.get("decimal_places", 0)
            number.setdefault("exclusiveMaximum", 10**whole)
            number.setdefault("exclusiveMinimum", -(10**whole))
        return number
