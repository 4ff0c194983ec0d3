"""The `emberd` command. One file a group of commands; nothing else may import this package."""

from .app import main

__all__ = ["main"]
