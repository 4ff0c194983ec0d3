"""Bodies of the routes that change which models there are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...errors import BadRequestError
from ...models.modelfile import GO_TEMPLATE_FAULT
from ...models.names import check_digest
from ...models.recipe import Recipe, is_go_template
from ..body import FIRST_FAULT, MAX_MESSAGES, Flag, Schema, Text
from .schema import Options

_MAX_FILES = 1000


class NamedModel(Schema):
    """A body that says which model; `name` is the older spelling."""

    model: Text | None = None
    name: Text | None = None

    def wanted(self) -> str:
        """Raises BadRequestError."""
        if not (name := self.model or self.name):
            raise BadRequestError("'model' is required", "model")
        return name


class PullRequest(NamedModel):
    insecure: Flag | None = None
    stream: Flag | None = None


class DeleteRequest(NamedModel):
    pass


class CopyRequest(Schema):
    source: Text
    destination: Text


class ModelMessage(Schema):
    role: Literal["system", "user", "assistant"]
    content: Text


class CreateRequest(NamedModel):
    from_: Text | None = Field(None, alias="from")
    files: Annotated[dict[str, Text], Field(max_length=_MAX_FILES)] | None = None
    adapters: dict[str, Any] | None = None
    template: Text | None = None
    system: Text | None = None
    parameters: Options | None = None
    messages: Annotated[list[ModelMessage], Field(max_length=MAX_MESSAGES), FIRST_FAULT] | None = (
        None
    )
    license: Text | Annotated[list[Text], FIRST_FAULT] | None = None
    quantize: Text | None = None
    modelfile: Text | None = None
    stream: Flag | None = None

    def refuse_unserved(self) -> None:
        """Raises BadRequestError."""
        for name in ("adapters", "quantize"):
            if getattr(self, name):
                raise BadRequestError(f"'{name}' is not supported; leave it out", name)
        if self.modelfile:
            raise BadRequestError(
                "'modelfile' is of an older API; send 'from', 'system' and so on, or use emberd create -f",
                "modelfile",
            )
        if self.from_ and self.files:
            raise BadRequestError(
                "'from' and 'files' both say where the weights are; send one", "files"
            )
        if not self.from_ and not self.files:
            raise BadRequestError("'from' is required, or 'files'", "from")
        if self.template and is_go_template(self.template):
            raise BadRequestError(f"'template': {GO_TEMPLATE_FAULT}", "template")

    def recipe(self) -> Recipe:
        return Recipe.from_json(
            {
                "template": self.template,
                "system": self.system,
                "parameters": self.parameters.model_dump() if self.parameters else None,
                "messages": [message.model_dump() for message in self.messages or ()],
                "license": self.license,
            }
        )

    def blob(self) -> str:
        """The digest of the one file, whose name means nothing. Raises BadRequestError."""
        for name in self.files or ():
            if set(name) & set("\\:\0") or set(name.split("/")) & {"", ".", ".."}:
                raise BadRequestError(
                    "'files': a name is not a path below the model's folder", "files"
                )
        digests = list((self.files or {}).values())
        if len(digests) != 1:
            raise BadRequestError(
                f"'files' has {len(digests)} files, and one GGUF file makes a model; the parts of a split model "
                "can be put into the models folder",
                "files",
            )
        return check_digest(digests[0], "files")
