"""What a caller may say of the prefix cache, in llama.cpp's and vLLM's spelling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .body import Flag, Schema, Text


class ReuseFields(Schema):
    cache_prompt: Flag | None = None  # false: nothing is reused, and nothing left to be reused
    cache_salt: Annotated[Text, Field(min_length=1, max_length=256)] | None = None

    def salt(self) -> str | None:
        """As in GenerateRequest."""
        return None if self.cache_prompt is False else self.cache_salt or ""
