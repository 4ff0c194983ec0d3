"""The engines: token ids in, token ids or vectors out. They know no text, no HTTP and no WGSL."""

from .encoder import EncoderEngine
from .engine import Engine

__all__ = ["EncoderEngine", "Engine"]
