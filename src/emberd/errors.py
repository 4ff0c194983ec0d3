"""Every error emberd raises on purpose.

EmberdError
├── BadRequestError          the caller's input is wrong; `param` names the field       400
│   └── ContextOverflowError the prompt is longer than the served context               400
├── ModelNotFoundError       no model of that name                                      404
├── NotFoundError            no stored object of that id                                404
├── NotSupportedError        known to the protocol, not to this build or model          501
├── ModelFileError           a file that is damaged, hostile or not supported           400
├── ModelLoadError           the file is fine, loading it failed                        500
├── DownloadError            a registry, hub or disk that fails in a pull                502
├── OverloadedError          the daemon is leaving; retry later                         503
│   └── QueueFullError       as many sequences run and wait as may      429, 503 or 529, by API
├── RequestCancelledError    somebody else ended the request on purpose                499
├── WorkerDiedError          the worker process ended under a running request           500
│   └── WorkerGoneError      it ended as the request came to it; send it again          503 or 529, by API
├── DeviceError              no adapter, a missing limit, a lost device                 500
└── ConfigError              a setting or flag is wrong; ends the command with code 1

Gateways map these to their protocol's bodies in one place each; messages are written for the person
who will read them, and quote the value, the limit and what to change.
"""

from __future__ import annotations


class EmberdError(Exception):
    """Base of the tree. `str(error)` is one sentence a user can act on."""

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class BadRequestError(EmberdError):
    """The caller's input is wrong. `param` is the path of the field, as `messages[0].content`."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflowError(BadRequestError):
    """The prompt alone does not fit. Carries both numbers, which clients read.

    `at_least`: the prompt was counted only as far as it took to know.
    """

    def __init__(
        self,
        num_prompt_tokens: int,
        context_length: int,
        param: str = "messages",
        *,
        at_least: bool = False,
    ) -> None:
        counted = f" The prompt has at least {num_prompt_tokens} tokens." if at_least else ""
        super().__init__(
            f"This model's maximum context length is {context_length} tokens, and the request "
            f"({num_prompt_tokens} tokens) exceeds the available context size "
            f"({context_length} tokens).{counted} Shorten the prompt, or serve a larger context with "
            "--ctx.",
            param,
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.context_length = context_length


class ModelNotFoundError(EmberdError):
    """No model of that name. Clients match "not found" in the text; `hint` goes on from there."""

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(f"model '{name}' not found{hint}")
        self.name = name


class NotFoundError(EmberdError):
    """Nothing is stored under an id. `code` is for programs, where the API has a word for it."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class NotSupportedError(EmberdError):
    """A feature the protocol knows and this build or model does not serve."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ModelFileError(EmberdError):
    """A model file that is damaged, hostile, or of a kind that is not supported."""


class ModelLoadError(EmberdError):
    """Loading failed for a reason outside the file: memory, device, worker."""


class DownloadError(EmberdError):
    """A registry or hub that cannot be reached or sends what it should not, or a disk without room for it."""


class OverloadedError(EmberdError):
    """No room now. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(OverloadedError):
    """As many sequences run and wait as the setting allows. Each API has a status of its own for it."""


class RequestCancelledError(EmberdError):
    """The request was ended on purpose, by another one that named it."""


class WorkerDiedError(EmberdError):
    """The worker process ended while it held this request."""


class WorkerGoneError(WorkerDiedError):
    """The worker process had nothing to do and ended as this request came to it. `retry_after` is in seconds."""

    retry_after = 1


class DeviceError(EmberdError):
    """No usable adapter, a limit or feature that is missing, or a device that was lost."""


class HeadsError(DeviceError):
    """The model's attention heads are of a size that no GPU's kernels take."""


class ConfigError(EmberdError):
    """A setting, flag or environment variable has a bad value."""
