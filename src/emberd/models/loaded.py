"""LoadedModel: one model that is ready, its text side (tokenizer, chat template) and its worker.

What the gateway talks to. Knows nothing of HTTP or of either protocol.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from ..errors import BadRequestError, ModelFileError, NotSupportedError
from ..gguf.reader import GGUFFile
from ..inspection import BatchStatus
from ..protocol import (
    EmbedRequest,
    GenerateRequest,
    SequenceUpdate,
    StepMessage,
    TokenTable,
    WorkerInfo,
)
from ..text.detokenize import Detokenizer
from ..text.fill import FillTokens, fill_ids, fill_tokens
from ..text.lengths import refuse_overlong
from ..text.template import ChatTemplate, render_to_ids
from ..text.tokenizer import Tokenizer
from ..text.tools.syntax import tool_support
from .facts import ModelFacts, sampling_hints
from .names import short_name
from .recipe import PLAIN, Recipe
from .store import StoredModel

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\\n\\n' }}{% endif %}{{ message['content'] }}"
    "{% endfor %}"
)
"""For files that bring no chat template, base models mostly: the texts, one after the other."""
_SYSTEM_ROLES = ("system", "developer")


class Worker(Protocol):
    """What is used of worker.client.WorkerClient."""

    @property
    def info(self) -> WorkerInfo: ...

    @property
    def stats(self) -> StepMessage:
        """Counts of sequences and free KV blocks, as the worker told them last."""

    @property
    def alive(self) -> bool: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[SequenceUpdate, None]: ...

    async def embed(self, request: EmbedRequest) -> bytes: ...

    async def inspect(self, whole: bool = True) -> BatchStatus:
        """What waits and runs; `whole`: blocks and steps too. Raises WorkerDiedError."""

    async def preempt(self, request_id: str | None) -> str | None:
        """Put a sequence back to those that wait; which it was. Raises WorkerDiedError."""

    async def close(self) -> None: ...


class StartedWorker(Worker, Protocol):
    """A worker that is still to be told where its model's vocabulary is to be had."""

    token_table: Callable[[], TokenTable] | None
    on_death: Callable[[Any], None] | None  # called with the worker when it ends by itself


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text side of a model file."""

    tokenizer: Tokenizer
    template: ChatTemplate
    sampling_hints: Mapping[str, float]  # fields of SamplingParams that the recipe or the file says
    recipe: Recipe = PLAIN
    fill: FillTokens | None = None  # None: it cannot fill in the middle
    tool_template: ChatTemplate | None = None  # that the file has for conversations with tools

    @classmethod
    def load(cls, path: Path, recipe: Recipe = PLAIN) -> ModelText:
        """Blocks for as long as the vocabulary takes. Raises ModelFileError."""
        file = GGUFFile(path)
        try:
            metadata = file.metadata
            try:
                tokenizer = Tokenizer.from_metadata(metadata)
            except (ModelFileError, NotSupportedError) as error:
                raise ModelFileError(f"{path.name}: {error.message}") from None
            source = metadata.get("tokenizer.chat_template", PLAIN_TEMPLATE)
            if not isinstance(source, str):
                raise ModelFileError(f"{path.name}: 'tokenizer.chat_template' is not text")
            template = ChatTemplate(recipe.template or source, tokenizer)
            for_tools = metadata.get("tokenizer.chat_template.tool_use")
            tool_template = None
            if isinstance(for_tools, str) and not recipe.template and tool_support(for_tools):
                tool_template = ChatTemplate(for_tools, tokenizer)
            hints = sampling_hints(metadata) | recipe.hints
            return cls(tokenizer, template, hints, recipe, fill_tokens(metadata), tool_template)
        finally:
            file.close()

    def template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        return self.tool_template if tools and self.tool_template is not None else self.template

    def opened(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """`messages` with the recipe's in front; a system message of the caller's own stands for the recipe's."""
        recipe = self.recipe
        opening = [{"role": role, "content": text} for role, text in recipe.messages]
        if recipe.system and not any(m["role"] in _SYSTEM_ROLES for m in messages):
            opening.insert(0, {"role": "system", "content": recipe.system})
        return [*opening, *messages]

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        context_length: int | None = None,
        /,
        **variables: Any,
    ) -> list[int]:
        """Prompt ids of a conversation, ready for the reply. Blocks; raises BadRequestError, and
        ContextOverflowError where the prompt is far longer than `context_length`."""
        chosen = self.template_for(tools)
        if template is not None:
            chosen = ChatTemplate(template, self.tokenizer)
        return render_to_ids(
            chosen, self.tokenizer, messages, context_length, tools=tools, **variables
        )

    def token_table(self) -> TokenTable:
        """The vocabulary for a worker that follows grammars. Blocks."""
        return self.tokenizer.token_table()

    def known_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """`ids` as they are. Raises BadRequestError where one is no token of this model."""
        size = self.tokenizer.vocab_size
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < size:
                raise BadRequestError(
                    f"'{param}': {reprlib.repr(token_id)} at place {position} is no token; ids go from 0 to {size - 1}",
                    param,
                )
        return tuple(ids)

    def plain_ids(self, text: str) -> list[int]:
        """Ids of text that goes on after a prompt, of which nothing is read as a control token."""
        return self.tokenizer.encode(text, add_special=False, parse_special=False)

    def control_ids(self, text: str) -> list[int]:
        """Ids of text that goes on after a prompt: control tokens are read, nothing is put in front."""
        return self.tokenizer.encode(text, add_special=False, parse_special=True)


@dataclass(eq=False, slots=True)
class LoadedModel:
    """A model and its worker. `active` counts the requests that hold it; the manager alone changes it."""

    stored: StoredModel
    text: ModelText
    worker: Worker
    keep_alive: float  # seconds after the last reply; inf: for ever
    active: int = 0
    last_used: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    draft: ModelFacts | None = (
        None  # of the draft that the settings name; a shared worker may have another's
    )

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def info(self) -> WorkerInfo:
        return self.worker.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def context_length(self) -> int:
        """Tokens that one sequence may hold here: of the context and of the whole KV pool, the smaller."""
        if self.info.num_blocks == 0:
            return self.info.context_length
        return min(self.info.context_length, self.info.num_blocks * self.info.block_size)

    @property
    def expires_at(self) -> datetime | None:
        """When it is unloaded if nothing more comes; None: never."""
        if math.isinf(self.keep_alive):
            return None
        since = datetime.now(timezone.utc) if self.active else self.last_used
        return since + timedelta(seconds=self.keep_alive)

    def raw_ids(self, prompt: str) -> list[int]:
        """Ids of text as it is: control tokens are read, BOS stands once where the model wants it. No text is
        the beginning of one: BOS, where there is one. Blocks; raises ContextOverflowError where the prompt is
        far too long."""
        refuse_overlong(self.tokenizer, prompt, self.context_length, "prompt")
        ids = self.tokenizer.encode_prompt(prompt)
        return ids if ids or self.tokenizer.bos_id is None else [self.tokenizer.bos_id]

    def embed_ids(self, text: str) -> list[int]:
        """Ids of a text to embed, between the tokens that the model wants around one. Blocks."""
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def fill_ids(
        self,
        before: str | Sequence[int],
        behind: str,
        param: str,
        files: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, ...]:
        """Ids of a prompt for what stands between two texts, of which `param` is the second. Blocks; raises
        BadRequestError where the model has no tokens for that, ContextOverflowError as `raw_ids` does."""
        if self.text.fill is None:
            raise BadRequestError(f'"{short_name(self.name)}" does not support insert', param)
        texts = [before if isinstance(before, str) else "", behind, *(text for _, text in files)]
        refuse_overlong(self.tokenizer, "".join(texts), self.context_length, param)
        return tuple(fill_ids(self.tokenizer, self.text.fill, before, behind, files))

    def known_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """Raises BadRequestError."""
        return self.text.known_ids(ids, param)

    def detokenizer(self, shown: Collection[int] = ()) -> Detokenizer:
        """`shown`: control tokens whose names are text to the reader."""
        return Detokenizer(self.tokenizer, shown=shown)
