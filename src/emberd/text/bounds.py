"""What a template may spend: sizes of texts and numbers, and time. Templates come with files and are not trusted.

jinja2's sandbox keeps a template away from Python; this keeps it from filling memory or running for ever.
Only operations that make much out of little are looked at, so ordinary templates cost nothing more.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

MAX_TEXT = 1 << 24
"""Characters of any text that a template makes: several times the longest prompt."""

MAX_SOURCE = 1 << 20
"""Characters of a template itself: fifty times the longest."""

MAX_ITEMS = 1 << 20
"""Items of a list that a template puts together."""

MAX_NUMBER = 100_000
"""Largest number that a filter or a method may be given: widths, counts, indents."""

MAX_SECONDS = 5.0
"""Time for one rendering. Long conversations take a few hundredths of a second."""

_WIDTH = re.compile(r"\d{5,}")  # a width or precision in a format


class TemplateTimeoutError(SecurityError):
    """A template ran for longer than MAX_SECONDS."""


class _CodeGenerator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(SandboxedEnvironment):
    """A sandbox whose operators, filters and methods refuse what would grow beyond bounds."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.globals.pop("lipsum", None)
        self.filters = {name: bounded(name, call) for name, call in self.filters.items()}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and _product(left, right) > MAX_TEXT:
            raise SecurityError(f"a template may not make texts of over {MAX_TEXT} characters")
        if operator == "**" and not (abs(left) <= MAX_NUMBER and abs(right) <= 64):
            raise SecurityError("a template may not raise numbers to such powers")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _check_size(len(left) + len(right))
        if operator == "+" and isinstance(left, list) and isinstance(right, list):
            if len(left) + len(right) > MAX_ITEMS:
                raise SecurityError(f"a template may not make lists of over {MAX_ITEMS} items")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, /, function: Any, *args: Any, **kwargs: Any) -> Any:
        subject = getattr(function, "__self__", None)
        if isinstance(subject, str):
            _check_call(getattr(function, "__name__", ""), (subject, *args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2's stand-in for `str.format`, whose text is looked at first."""
        found = super().wrap_str_format(value)
        if found is not None:
            _check_format(value.__self__)
        return found

    def joined(self, parts: tuple[Any, ...]) -> str:
        """What `~` does."""
        texts = [str(part) for part in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)


def bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `name`, looking at what it is given and what it gives."""

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, (*args, *kwargs.values()))
        result = call(*args, **kwargs)
        if isinstance(result, str):
            _check_size(len(result))
        return result

    return checked


def _check_call(name: str, args: tuple[Any, ...]) -> None:
    for arg in args[1:]:
        if isinstance(arg, int) and abs(arg) > MAX_NUMBER:
            raise SecurityError(f"a template may not give '{name}' a number over {MAX_NUMBER}")
    texts = [arg for arg in args if isinstance(arg, str)]
    if name in ("format", "format_map") and texts:
        _check_format(texts[0])
    if name in ("replace", "join", "translate", "urlize", "indent") and len(texts) > 1:
        _check_size((len(texts[0]) + 1) * max(map(len, texts[1:])))
    if name == "urlize" and texts:
        _check_size(1024 * len(texts[0]))  # its patterns take long over long words


def _check_format(text: str) -> None:
    if _WIDTH.search(text):
        raise SecurityError("a template may not format to such widths")


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise SecurityError(f"a template may not make texts of over {MAX_TEXT} characters")


def _product(left: Any, right: Any) -> int:
    for sized, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(sized, "__len__"):
            return len(sized) * max(0, times)
    return 0


@contextmanager
def time_limit(seconds: float = MAX_SECONDS) -> Iterator[None]:
    """Raise TemplateTimeoutError in this thread when the body takes longer."""
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    done = False

    def interrupt() -> None:
        with lock:
            if not done:
                error = ctypes.py_object(TemplateTimeoutError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except TemplateTimeoutError:
        raise TemplateTimeoutError(f"it ran for longer than {seconds:g} seconds") from None
    finally:
        with lock:
            done = True
        timer.cancel()
