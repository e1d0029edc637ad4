"""What all models of the configuration have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Model(BaseModel):
    """Base of all models: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        ser_json_inf_nan="constants",  # else they would be None in an environment's keywords
    )

    @model_validator(mode="before")
    @classmethod
    def _blank_is_absent(cls, data: Any) -> Any:
        # `kwargs:` with nothing behind it is null in YAML and means "left out" to who wrote it.
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in cls.model_fields}
