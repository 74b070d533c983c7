"""Type annotations as JSON Schema, and plain values checked against it: one description for Python, files and browsers."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Schema = dict[str, Any]
TYPES = {"number": (int, float), "integer": (int,), "string": (str,), "boolean": (bool,), "null": (type(None),)}
NAMES = {float: "number", int: "integer", str: "string", bool: "boolean", type(None): "null"}


def schema_of(annotation: Any) -> Schema:
    """The JSON Schema of a type: numbers, strings, literals, unions, sequences, tuples of one length, mappings from names.

    `Annotated[S, T]` is T: callers may pass the wider S, such as tensors and tuples for lists.
    """
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation in NAMES:
        return {"type": NAMES[annotation]}
    if annotation is Any:
        return {}
    if origin is Annotated:
        return schema_of(inside[1])
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return _any_of([schema_of(one) for one in inside])
    if origin is tuple:
        return {"type": "array", "items": schema_of(inside[0]), "minItems": len(inside), "maxItems": len(inside)}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(inside[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inside[1])}
    raise TypeError(f"{annotation} has no JSON Schema")


def _any_of(options: list[Schema]) -> Schema:
    """Several schemas as one; plain types go into one list, as JSON Schema allows."""
    options = [each for option in options for each in option.get("anyOf", [option])]
    plain = [option["type"] for option in options if option.keys() == {"type"}]
    names = list(dict.fromkeys(name for each in plain for name in ([each] if isinstance(each, str) else each)))
    others = [option for option in options if option.keys() != {"type"}]
    first = [{"type": names[0] if len(names) == 1 else names}] if names else []
    return first[0] if first and not others else {"anyOf": [*first, *others]}


def mismatch(value: Any, schema: Schema, path: str) -> str:
    """Why a plain value does not fit a schema, with its path inside the value; '' where it fits."""
    if "anyOf" in schema:
        reasons = [mismatch(value, option, path) for option in schema["anyOf"]]
        inside = [reason for reason in reasons if not reason.startswith(f"{path} ")]  # of an option that fits but for a part of it
        return "" if "" in reasons else max(inside, key=len) if inside else f"{path} must be {describe(schema)}, not {_show(value)}"
    kind = schema.get("type")
    if kind == "object" and isinstance(value, dict):
        inner = schema["additionalProperties"]
        return next((why for name, item in value.items() if (why := mismatch(item, inner, f"{path}['{name}']"))), "")
    if kind == "array" and isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"{path} must have {schema['minItems']} items, not {len(value)}"
        inner = schema["items"]
        if set(map(type, value)) <= _plain_types(inner):
            return ""  # the usual case, without a step of Python per number
        return next((why for i, item in enumerate(value) if (why := mismatch(item, inner, f"{path}[{i}]"))), "")
    if not schema or ("enum" in schema and value in schema["enum"]) or type(value) in _plain_types(schema):
        return ""
    return f"{path} must be {describe(schema)}, not {_show(value)}"


def _plain_types(schema: Schema) -> set[type]:
    """The Python types of a schema that is nothing but types; none of another."""
    names = schema.get("type", ()) if schema.keys() == {"type"} else ()
    return {each for name in ([names] if isinstance(names, str) else names) for each in TYPES[name]}


def describe(schema: Schema) -> str:
    """A schema in a few words, for messages and pages: 'number or null', '[number]', '{name: [number]}'."""
    if "anyOf" in schema:
        return " or ".join(map(describe, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"'{one}'" for one in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "object":
        return f"{{name: {describe(schema['additionalProperties'])}}}"
    if kind == "array":
        count = f" x {schema['minItems']}" if "minItems" in schema else ""
        return f"[{describe(schema['items'])}{count}]"
    return kind if isinstance(kind, str) else " or ".join(kind)


def _show(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
