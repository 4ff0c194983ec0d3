"""emberd: a local inference daemon for GGUF models on any GPU through WebGPU."""

__version__ = "0.1.0"
