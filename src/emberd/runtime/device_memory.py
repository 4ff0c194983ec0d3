"""How much memory an adapter has. WebGPU does not tell, so Vulkan's own library is asked.

Struct layouts and numbers: the Vulkan specification, VkPhysicalDeviceProperties and VkPhysicalDeviceMemoryProperties.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import sys
from collections.abc import Iterator

import psutil

from .device import AdapterInfo

logger = logging.getLogger(__name__)

_INSTANCE_CREATE_INFO = 1
_DEVICE_LOCAL = 1
_PROPERTIES_BYTES = 2048  # more than the struct takes
_UNIFIED_SHARE = 0.75  # of main memory: what macOS lets a GPU use


class _CreateInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p),
        ("num_layers", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("num_extensions", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    )


class _MemoryType(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint32), ("heap", ctypes.c_uint32))


class _Heap(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint64), ("flags", ctypes.c_uint32))


class _MemoryProperties(ctypes.Structure):
    _fields_ = (
        ("num_types", ctypes.c_uint32),
        ("types", _MemoryType * 32),
        ("num_heaps", ctypes.c_uint32),
        ("heaps", _Heap * 16),
    )


def device_memory(adapter: AdapterInfo) -> int | None:
    """Bytes of the adapter's largest heap of its own; None where that cannot be known."""
    if adapter.is_software:
        return int(psutil.virtual_memory().total)
    if sys.platform == "darwin":
        return int(psutil.virtual_memory().total * _UNIFIED_SHARE)
    try:
        return dict(_heaps()).get(adapter.name)
    except (OSError, AttributeError) as error:
        logger.info("the memory of %s is not known: %s", adapter.name, error)
        return None


def _heaps() -> Iterator[tuple[str, int]]:
    """Name and size of largest own heap, of each device that Vulkan lists."""
    found = "vulkan-1" if sys.platform == "win32" else ctypes.util.find_library("vulkan")
    vulkan = ctypes.CDLL(found or "libvulkan.so.1")
    instance = ctypes.c_void_p()
    info = _CreateInfo(type=_INSTANCE_CREATE_INFO)
    if vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) != 0:
        raise OSError("Vulkan makes no instance")
    try:
        count = ctypes.c_uint32()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        devices = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
        for device in devices[: count.value]:
            properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
            vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
            name = properties.raw[20:276].split(b"\0", 1)[0].decode(errors="replace")
            memory = _MemoryProperties()
            vulkan.vkGetPhysicalDeviceMemoryProperties(
                ctypes.c_void_p(device), ctypes.byref(memory)
            )
            own = [
                heap.size for heap in memory.heaps[: memory.num_heaps] if heap.flags & _DEVICE_LOCAL
            ]
            if own:
                yield name, max(own)
    finally:
        vulkan.vkDestroyInstance(instance, None)
