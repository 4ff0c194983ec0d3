"""The continuous batcher: token ids in, token ids out. It knows no text, no HTTP and no WGSL."""

from .engine import Engine

__all__ = ["Engine"]
