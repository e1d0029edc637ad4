"""The JSON Schema for editors: what it lets pass and what it marks is what loading does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsec.config import json_schema, load
from dsec.errors import ConfigError

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def violations(schema: Any, value: Any, root: Any, path: str = "") -> Iterator[str]:
    """Validate by the keywords that our schema uses; a keyword unknown here fails the test."""
    known = {"$schema", "$defs", "title", "description", "default", "examples", "$ref"}
    if schema is True:
        return
    if "$ref" in schema:
        yield from violations(root["$defs"][schema["$ref"].split("/")[-1]], value, root, path)
    for keyword, rule in schema.items():
        if keyword in known:
            continue
        match keyword:
            case "type":
                names = [rule] if isinstance(rule, str) else rule
                fits = any(
                    isinstance(value, _KINDS[name])
                    and (name == "boolean" or not isinstance(value, bool))
                    for name in names
                )
                if not fits:
                    yield f"{path}: type {rule}"
            case "properties":
                for key in rule.keys() & value.keys() if isinstance(value, dict) else ():
                    yield from violations(rule[key], value[key], root, f"{path}.{key}")
            case "patternProperties":
                pass
            case "additionalProperties":
                allowed = schema.get("properties", {}).keys()
                patterns = schema.get("patternProperties", {})
                for key in value if isinstance(value, dict) else ():
                    if key in allowed or any(re.search(p, key) for p in patterns):
                        continue
                    # If anything may be there, they are names of the user's own.
                    below = [] if rule is False else [*violations(rule, value[key], root)]
                    yield from below if rule is not False else [f"{path}.{key}: unknown"]
            case "required":
                missing = [key for key in rule if not isinstance(value, dict) or key not in value]
                if missing:
                    yield f"{path}: required {missing}"
            case "items":
                for index, item in enumerate(value if isinstance(value, list) else ()):
                    yield from violations(rule, item, root, f"{path}[{index}]")
            case "minItems":
                if isinstance(value, list) and len(value) < rule:
                    yield f"{path}: minItems"
            case "anyOf" | "oneOf":
                good = sum(not [*violations(option, value, root, path)] for option in rule)
                if not good or (keyword == "oneOf" and good != 1):
                    yield f"{path}: {keyword}"
            case "const":
                if value != rule:
                    yield f"{path}: const"
            case "enum":
                if value not in rule:
                    yield f"{path}: enum"
            case "pattern":
                if isinstance(value, str) and not re.search(rule, value):
                    yield f"{path}: pattern"
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
                if (
                    isinstance(value, int | float)
                    and not {
                        "minimum": value >= rule,
                        "maximum": value <= rule,
                        "exclusiveMinimum": value > rule,
                        "exclusiveMaximum": value < rule,
                    }[keyword]
                ):
                    yield f"{path}: {keyword}"
            case _:
                pytest.fail(f"the schema uses {keyword!r}, which this test can't check")


def marks(document: Any) -> list[str]:
    schema = json_schema()
    return list(violations(schema, document, schema))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid_for_editors_and_for_us(path: Path) -> None:
    assert marks(yaml.safe_load(path.read_text())) == []
    load(path)


def test_numbers_with_underscores_are_valid_as_the_text_that_editors_see() -> None:
    document = yaml.safe_load(EXAMPLES[0].read_text())
    document["run"] = {"steps": "200_000"}
    assert marks(document) == []


@pytest.mark.parametrize(
    "text",
    [
        "run: {steps: 0}",
        "run: {steps: 5, episodes: 5}",
        "run: {}",
        "run: {steps: 5, stepz: 3}",
        "run: {steps: x}",
        "agents: []",
        "agents: [{name: a}]",
        "agents: [{name: a, env: {}, policy: {entry: 'a:b'}}]",
        "agents: [{name: a, env: {id: X, entry: 'a:b'}, policy: {entry: 'a:b'}}]",
        "agents: [{name: a, env: {id: X}, policy: {entry: ab}}]",
        "agents: [{name: a, env: {id: X}, policy: {entry: 'a:b'}, sync_interval: 0}]",
        "agents: [{name: a, env: {id: X}, policy: {entry: 'a:b'}, failover: {standby: hot}}]",
        "agents: [{name: ' ', env: {id: X}, policy: {entry: 'a:b'}}]",
        "agents: [{name: a, env: {id: X}, policy: {entry: 'a:b'}, deadlines: {step_s: 0}}]",
        "record: {format: csv}",
        "pool: {backend: disk}",
        "pool: {size_mb: 0}",
    ],
)
def test_what_loading_refuses_the_schema_marks(text: str, tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLES[0].read_text()) | yaml.safe_load(text)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError):
        load(path)
    assert marks(document) != []


def test_every_key_is_described() -> None:
    schema = json.loads(json.dumps(json_schema()))
    for name, model in schema["$defs"].items():
        for key, field in model["properties"].items():
            described = field.get("description") or schema["$defs"].get(
                field.get("$ref", "").split("/")[-1], {}
            ).get("description")
            assert described, f"{name}.{key}"
