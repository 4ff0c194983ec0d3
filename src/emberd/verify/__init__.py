"""Holds a device against the reference on a model's own weights. Only the CLI imports this package."""

from .check import Check
from .encoder import check_encoder, check_encoder_kernels
from .kernels import check_kernels
from .model import check_model

__all__ = ["Check", "check_encoder", "check_encoder_kernels", "check_kernels", "check_model"]
