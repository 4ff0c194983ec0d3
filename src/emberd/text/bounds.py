"""Which operations of a template are bounded, and its time. Templates come with files and are not trusted.

jinja2's sandbox keeps a template away from Python; this keeps it from filling memory or running for ever. What makes
much out of little is looked at before it runs, and its result is spent (spending.py). Time ends a rendering between
two operations only, so no single one may take long.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from string import Formatter
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Cycler

from .spending import (
    MAX_TEXT,
    TemplateLimitError,
    changed,
    check_size,
    joined,
    made,
    put_together,
    weight,
)

MAX_SOURCE = 1 << 18
"""Characters of a template itself: ten times the longest."""

MAX_NUMBER = 100_000
"""Largest width, count or indent that a filter or a method may be given."""

MAX_SECONDS = 5.0
"""Time for one conversation. Long ones take a few hundredths of a second."""

MAX_STEPS = 1 << 30
"""Of a search that starts anew at each character."""

_CONVERSION = re.compile(r"%[^a-zA-Z%]*")

_SIZED = frozenset(
    "center ljust rjust zfill expandtabs indent tojson batch slice round to_bytes".split()
)
_SLOW_SEARCHES = frozenset("rfind rindex rsplit rpartition strip lstrip rstrip".split())
_CHANGES = frozenset("append extend insert update setdefault".split())


class TemplateTimeoutError(TemplateLimitError):
    """A template ran for longer than MAX_SECONDS."""


class _CodeGenerator(CodeGenerator):
    """What operators make goes through the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name, as all here
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_to_const(self, node: nodes.Expr, *rest: Any) -> str:
        """Nothing runs while a template is compiled: what it makes would be counted nowhere."""
        if not isinstance(node, (nodes.TemplateData, nodes.Const)):
            raise nodes.Impossible()
        return super()._output_child_to_const(node, *rest)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            self._made(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _made(self, visit: Callable[..., None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")


class BoundedEnvironment(SandboxedEnvironment):
    """A sandbox whose operators, filters and methods refuse what would grow beyond bounds."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "%", "+", "-"})
    made = staticmethod(made)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, optimized=False, **options)
        self.globals.pop("lipsum", None)
        self.filters = {name: bounded(name, call) for name, call in self.filters.items()}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            if _product(left, right) > MAX_TEXT:
                raise TemplateLimitError(
                    f"a template may not make texts of over {MAX_TEXT} characters"
                )
        elif operator == "**":
            if not (abs(left) <= MAX_NUMBER and abs(right) <= 64):
                raise TemplateLimitError("a template may not raise numbers to such powers")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, "%", right if isinstance(right, tuple) else (right,))
        result = super().call_binop(context, operator, left, right)
        return put_together(result, left, right) if operator == "+" else made(result)

    def call(self, context: Any, /, function: Any, *args: Any, **kwargs: Any) -> Any:
        subject, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(subject, bytes) and name != "decode":
            raise TemplateLimitError(f"a template may not use '{name}' of bytes")
        if isinstance(subject, (str, int, float)):
            args = _check_call(name, (subject, *args), kwargs)[1:]
        if function is Cycler or (
            isinstance(function, Macro) and (function.catch_varargs or function.catch_kwargs)
        ):
            made((*args, *kwargs.values()))
        result = made(super().call(context, function, *args, **kwargs))
        if name in _CHANGES and isinstance(subject, (list, dict)):
            changed(subject)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2's stand-in for `str.format`, whose text is looked at first."""
        found = super().wrap_str_format(value)
        if found is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, "{", (*args, *kwargs.values()))
            return found(*args, **kwargs)

        return checked

    def joined(self, parts: tuple[Any, ...]) -> str:
        """What `~` does."""
        return joined(map(str, parts))

    def concat(self, pieces: Iterable[str]) -> str:
        """The text of a template, a macro or a block."""
        return joined(pieces)


def bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `name`, looking at what it is given and what it gives."""

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return made(call(*_check_call(name, args, kwargs), **kwargs))

    return checked


def _check_call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments, those that can be gone through only once as lists where they are looked at."""
    if name in ("join", "sum"):
        kept = (str, list, tuple, dict)
        args = tuple(
            list(arg) if isinstance(arg, Iterable) and not isinstance(arg, kept) else arg
            for arg in args
        )
    given = (*args, *kwargs.values())
    texts = [arg for arg in given if isinstance(arg, str)]
    numbers = [arg for arg in given[1:] if isinstance(arg, int)]
    longest = max(map(len, texts[1:]), default=0)
    if name == "format":
        _check_format(texts[0] if texts else "", "%", given)
    elif name in _SIZED and any(abs(number) > MAX_NUMBER for number in numbers):
        raise TemplateLimitError(f"a template may not give '{name}' a number over {MAX_NUMBER}")
    elif name == "join":
        num_items = max(
            (len(arg) for arg in given if isinstance(arg, (list, tuple, dict))), default=1
        )
        check_size(sum(map(weight, given)) + num_items * max(map(len, texts), default=0))
    elif name == "sum":
        _check_sum([arg for arg in given if isinstance(arg, (list, tuple))])
    elif name in ("indent", "expandtabs") and texts:
        width = max([8, longest, *map(abs, numbers)])
        check_size(len(texts[0]) + width * (1 + texts[0].count("\n" if name == "indent" else "\t")))
    elif name == "replace" and len(texts) > 2:
        check_size(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
    elif name == "translate" and texts:
        check_size(len(texts[0]) * max(1, *map(weight, given[1:])))
    elif name == "urlize" and texts:
        check_size((1024 + longest) * len(texts[0]))  # its patterns take long over long words
    elif name in ("title", "wordwrap") and texts:
        check_size(16 * len(texts[0]) + longest * len(texts[0]))  # each word becomes a text
    elif name in _SLOW_SEARCHES and longest * len(texts[0]) > MAX_STEPS:
        raise TemplateLimitError(f"a template may not search so much by '{name}'")
    return args


def _check_format(text: str, mark: str, args: Iterable[Any]) -> None:
    """Widths may be neither large nor told by an argument."""
    widest = 0
    for spec in _specs(text, mark):
        if "*" in spec or "{" in spec or re.search(r"\d{5}", spec):
            raise TemplateLimitError("a template may not format to such widths")
        widest = max([widest, *map(int, re.findall(r"\d+", spec))])
    sizes = (widest, *map(weight, args))
    check_size(len(text) + text.count(mark) * max(sizes))


def _specs(text: str, mark: str) -> Iterator[str]:
    if mark == "{":
        return (spec for _, _, spec, _ in Formatter().parse(text) if spec)
    return (match[0] for match in _CONVERSION.finditer(text.replace("%%", "")))


def _check_sum(lists: list[list[Any] | tuple[Any, ...]]) -> None:
    """A sum of lists copies what it has at each of them."""
    if len(lists) > 1 and weight(lists[0]) * len(lists[0]) > MAX_STEPS:
        raise TemplateLimitError("a template may not sum so many lists")


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
