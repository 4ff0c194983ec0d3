"""Service: what all routes share. Starts generations on loaded models, counts them, and drains at the end.

Everything that can be wrong with a request is found here before its first byte is answered. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import logs
from ..config import Config
from ..errors import BadRequestError, ContextOverflowError, OverloadedError, QueueFullError
from ..models.loaded import LoadedModel, ModelText
from ..models.manager import ModelManager
from ..models.pull import Pulls
from ..protocol import NORMAL, PRIORITIES
from ..text.reply import PLAIN, ReplyFormat
from .body import refuse_ignored
from .embeddings import Embedded, embed_all
from .generate import Generation, Usage
from .metrics import Metrics
from .reading import Prompt
from .requests import ActiveRequest, Caller, Requests
from .sampling import Sampling, sampling_params

logger = logging.getLogger(__name__)

_KEPT = (0.0, 0.0, 0.25)
"""Share of the queue's places that a class of PRIORITIES leaves to better ones."""

LEAVING = "the daemon is shutting down; try again when it is back"


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Prompts of one request. `copies` sequences are made of each, in that order."""

    prompts: tuple[tuple[int, ...], ...]
    copies: int = 1
    param: str = "messages"  # the field that a too long prompt came from
    form: ReplyFormat = PLAIN
    expected: tuple[int, ...] = ()  # as in SamplingParams


@dataclass(frozen=True, slots=True)
class Wish:
    """How the reply should be made, whatever the prompt is."""

    sampling: Sampling
    defaults: dict[str, Any]  # of the protocol
    stop: tuple[str, ...] = ()
    context_length: int | None = None  # tokens the caller wants room for; None: what is served
    context_param: str = "options.num_ctx"  # the field that says so
    prompt_logprobs: int | None = None  # likeliest ones told at each place of the prompt; None: off
    tell_end: bool = False  # log-probabilities include the token that ends the reply
    cache_salt: str | None = ""  # as in GenerateRequest
    task: str = "generate"  # for messages: what a model must be able to do
    priority: int = NORMAL  # of PRIORITIES
    progress: bool = False  # tell how far the prompt is


class Service:
    """One for each application; lives on its event loop."""

    def __init__(self, config: Config, manager: ModelManager) -> None:
        self.config = config
        self.manager = manager
        self.pulls = Pulls(manager.store, config.registries)
        self.metrics = Metrics(manager.loaded, lambda: self.num_taken, config.queue_limit)
        manager.wrap = self.metrics.metered
        self.requests = Requests()
        self.leaving = False
        self._generations: dict[Generation, ActiveRequest] = {}
        self._num_starting = 0  # requests whose model loads or whose prompt is being read
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_sequences(self) -> int:
        return sum(len(generation) for generation in self._generations)

    @property
    def num_taken(self) -> int:
        """Places of the queue: sequences, requests whose model loads or prompt is read, embeddings."""
        return self.num_sequences + self._num_starting

    async def start(
        self,
        caller: Caller,
        name: str,
        keep_alive: float | None,
        wish: Wish,
        read_prompts: Callable[[LoadedModel], PromptIds],
    ) -> Generation:
        """Load `name` if need be, read the prompts (in a thread: it may block), and start generating.

        Raises ModelNotFoundError, BadRequestError, ContextOverflowError, OverloadedError, and what
        loading raises.
        """
        with self._starting(caller, name, wish.priority) as request:
            started_ns = time.perf_counter_ns()
            model = await self.manager.acquire(name, keep_alive, "completion", wish.task)
            request.model = model.name
            load_ns = time.perf_counter_ns() - started_ns
            try:
                ids = await asyncio.to_thread(read_prompts, model)
                self._check_number(ids)
                if self.config.strict:
                    refuse_ignored(ids.form.unheld)
                prompts = _prompts(model, ids, wish)
                self._check_room(len(prompts) - 1, wish.priority)  # one place is its own already
                generation = Generation(
                    caller.request_id,
                    model,
                    prompts,
                    sum(map(len, ids.prompts)),
                    load_ns,
                    self._ended,
                    progress=wish.progress,
                )
            except BaseException:
                self.manager.release(model)
                raise
            request.generation = generation
            self._generations[generation] = request
            return generation

    async def embed(
        self,
        caller: Caller,
        name: str,
        keep_alive: float | None,
        read_inputs: Callable[[LoadedModel], Sequence[tuple[int, ...]]],
    ) -> Embedded:
        """Load `name` if need be, read the inputs (in a thread: it may block), and embed them.

        Counts as one sequence. Raises as `start` does, and WorkerDiedError.
        """
        with self._starting(caller, name):
            return await self._embed(caller.request_id, name, keep_alive, read_inputs)

    async def count(self, name: str, num_tokens: Callable[[ModelText, int], int]) -> int:
        """What `num_tokens` counts (in a thread: it may block), given the text side of `name` and its context
        length. Neither loads the model nor takes a place. Raises ModelNotFoundError and what it raises."""
        text = await self.manager.text(name)
        context_length = self.manager.context_length(await self.manager.find(name))
        return await asyncio.to_thread(num_tokens, text, context_length)

    async def load(self, caller: Caller, name: str, keep_alive: float | None) -> LoadedModel:
        """Load `name` and leave it loaded for its keep-alive time."""
        with self._starting(caller, name):
            model = await self.manager.acquire(name, keep_alive)
            self.manager.release(model)
            return model

    async def drain(self, grace: float) -> None:
        """Take nothing new; wait for what runs, and after `grace` seconds end it with an error."""
        self.leaving = True
        self.pulls.end()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except asyncio.TimeoutError:
            self.end_replies(f"it waited {grace:g} seconds for this reply")

    def end_replies(self, reason: str) -> None:
        """End everything that runs with an error that says why."""
        for request in self.requests:
            request.end(OverloadedError(f"{LEAVING} ({reason})"))

    async def _embed(
        self,
        request_id: str,
        name: str,
        keep_alive: float | None,
        read_inputs: Callable[[LoadedModel], Sequence[tuple[int, ...]]],
    ) -> Embedded:
        started_ns = time.perf_counter_ns()
        model = await self.manager.acquire(name, keep_alive, "embedding", "embeddings")
        load_ns = time.perf_counter_ns() - started_ns
        try:
            inputs = await asyncio.to_thread(read_inputs, model)
            vectors = await embed_all(model, request_id, inputs)
        finally:
            self.manager.release(model)
        num_prompt_tokens = sum(map(len, inputs))
        self.metrics.replied(model.name, Usage(num_prompt_tokens), ())  # the worker's are metered
        return Embedded(vectors, num_prompt_tokens, load_ns)

    @contextlib.contextmanager
    def _starting(
        self, caller: Caller, name: str, priority: int = NORMAL
    ) -> Iterator[ActiveRequest]:
        self._check_room(1, priority)
        self._num_starting += 1
        self._idle.clear()
        request = self.requests.begin(caller, name, priority)
        try:
            with request.endable():
                yield request
        finally:
            self._num_starting -= 1
            if request.generation is None:
                self.requests.ended(request)
            self._see_whether_idle()

    def _check_number(self, ids: PromptIds) -> None:
        """Raises BadRequestError for more sequences than there are ever places for."""
        limit = self.config.queue_limit
        if len(ids.prompts) * ids.copies > limit:
            param = "n" if len(ids.prompts) <= limit and ids.copies > 1 else ids.param
            raise BadRequestError(
                f"'{param}': prompts times 'n' are {len(ids.prompts)} x {ids.copies} sequences, and at most "
                f"{limit} (EMBERD_QUEUE_LIMIT) may run or wait; send fewer prompts or a smaller 'n'",
                param,
            )

    def _check_room(self, num_new: int, priority: int) -> None:
        if self.leaving:
            raise OverloadedError(LEAVING)
        taken, limit = self.num_taken, self.config.queue_limit
        kept = int(limit * _KEPT[priority])
        if num_new and taken + num_new > limit - kept:
            beside = f" ({kept} are kept from class {PRIORITIES[priority]})" if kept else ""
            raise QueueFullError(
                "server busy, please try again. maximum pending requests exceeded: "
                f"{taken} of {limit} (EMBERD_QUEUE_LIMIT){beside} are running or waiting, and {num_new} would join"
            )

    def _ended(self, generation: Generation) -> None:
        self.requests.ended(self._generations.pop(generation))
        self._see_whether_idle()
        self.manager.release(generation.model)
        usage = generation.usage
        self.metrics.replied(generation.model.name, usage, generation.endings)
        logger.info(
            "reply",
            extra=logs.fields(
                model=generation.model.name,
                ends=",".join(generation.endings),
                prompt_tokens=usage.num_prompt_tokens,
                cached_tokens=usage.num_cached_tokens,
                completion_tokens=usage.num_completion_tokens,
                reasoning_tokens=usage.num_reasoning_tokens,
                drafted_tokens=usage.num_drafted_tokens,
                accepted_tokens=usage.num_accepted_tokens,
                load_ms=round(generation.load_ns / 1e6),
                first_token_ms=round(generation.prompt_ns / 1e6),
                decode_ms=round(generation.decode_ns / 1e6),
            ),
        )

    def _see_whether_idle(self) -> None:
        if not self._generations and not self._num_starting:
            self._idle.set()


def fits(model: LoadedModel, num_prompt_tokens: int) -> bool:
    """Whether a prompt leaves room for one token of reply."""
    return num_prompt_tokens < model.context_length


def _prompts(model: LoadedModel, ids: PromptIds, wish: Wish) -> Sequence[Prompt]:
    served = model.context_length
    if wish.context_length is not None and wish.context_length > served:
        raise BadRequestError(
            f"'{wish.context_param}': {wish.context_length} tokens of context were asked for, and {served} are "
            "served; ask for less, or serve more with --ctx",
            wish.context_param,
        )
    _check_bias(model, wish.sampling)
    stop_ids = tuple(sorted(model.tokenizer.stop_ids))
    params = sampling_params(wish.sampling, model.text.sampling_hints, wish.defaults, stop_ids)
    prompts: list[Prompt] = []
    for token_ids in ids.prompts:
        if not token_ids:
            raise BadRequestError(f"'{ids.param}': the prompt is empty", ids.param)
        if not fits(model, len(token_ids)):
            raise ContextOverflowError(len(token_ids), served, ids.param)
        room = served - len(token_ids)
        for copy in range(ids.copies):
            prompts.append(
                Prompt(
                    token_ids,
                    dataclasses.replace(
                        params,
                        max_tokens=min(params.max_tokens, room),
                        seed=(params.seed + len(prompts)) & 0xFFFF_FFFF,
                        grammar=ids.form.grammar,
                        expected=ids.expected,
                    ),
                    wish.stop or model.text.recipe.stops,
                    ids.form,
                    wish.prompt_logprobs,
                    wish.tell_end,
                    wish.cache_salt,
                    wish.priority,
                    copy > 0,
                )
            )
    return prompts


def _check_bias(model: LoadedModel, sampling: Sampling) -> None:
    size = model.tokenizer.vocab_size
    for token_id, _ in sampling.logit_bias or ():
        if not 0 <= token_id < size:
            raise BadRequestError(
                f"'logit_bias': {token_id} is no token of this model; ids go from 0 to {size - 1}",
                "logit_bias",
            )
