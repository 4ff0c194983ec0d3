"""How far a prompt is, for callers that ask: llama.cpp's field, and what a streamed answer tells."""

from __future__ import annotations

from typing import Any

from .body import Flag, Schema
from .events import Progress


class ProgressField(Schema):
    return_progress: Flag | None = None  # where the answer is streamed; else it changes nothing


def told(progress: Progress) -> dict[str, Any]:
    """In llama.cpp's names. `position`: how many are to be admitted before it; null once it runs."""
    return {
        "prompt_progress": {
            "total": progress.num_prompt_tokens,
            "cache": progress.num_cached_tokens,
            "processed": progress.num_computed_tokens,
            "position": progress.position,
            "time_ms": round(1e3 * progress.seconds),
        }
    }
