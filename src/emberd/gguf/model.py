"""What a decoder model is: its sizes and switches, and where its tensors lie. Filled in by spec.py and tensors.py.

A difference of sizes or switches between architectures is a field here; only different mathematics is new code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .reader import GGUFFile, TensorInfo
from .rope import Temperature, Yarn

Activation = Literal["silu", "gelu", "clamped_silu", "relu_squared"]
"""Of a feed-forward. gelu: its tanh approximation; clamped_silu: gpt-oss's, which clamps gate and up; relu_squared
stands without gates only."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope_base: float  # 0: the layer does not rotate
    rope_scale: float  # positions are divided by it (linear scaling); 1: none
    window: int  # tokens up to its own that attention sees; 0: all
    ahead: int = 0  # tokens behind its own that attention sees too


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts: `used` of `count` feed-forwards a token, chosen and weighted by a router's softmax."""

    count: int
    used: int
    normalized: bool  # the chosen ones' weights are made to sum up to 1
    scale: float  # of the weights
    shared_ffn_size: int  # of the feed-forward that every token takes beside them; 0: none


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of one decoder model."""

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int  # of one expert where there are experts
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int  # trained context
    norm_eps: float
    rope_dim: int  # leading dims of a head that are rotated
    rope_pairing: Literal["adjacent", "halves"]  # (0,1),(2,3).. or (0,d/2),(1,d/2+1)..
    activation: Activation  # of the gate, or of what there is without gates
    embedding_scale: float  # 1: none
    attention_scale: float  # usually head_dim ** -0.5
    layers: tuple[LayerSpec, ...]
    rope_magnitude: float = 1.0  # of the rotated dims
    rope_original_context: int = 0  # above it the long rope factors count
    yarn: Yarn | None = None
    attention_cap: float = 0.0  # scores become cap · tanh(score / cap); 0: none
    logit_cap: float = 0.0
    logit_scale: float = 1.0
    whole_qk_norm: bool = False  # q and k are normed over all heads together
    experts: ExpertSpec | None = None
    temperature: Temperature | None = None  # of queries
    gated: bool = True  # feed-forwards are activation(gate) · up; else activation(up)
    parallel: bool = False  # attention and feed-forward read the same state; both are added to it

    @property
    def causal(self) -> bool:
        """Whether no token sees those behind it. Else a text is run whole, and the model makes embeddings only."""
        return not any(layer.ahead for layer in self.layers)

    @property
    def window(self) -> int:
        """Tokens that attention sees in every layer; 0 where a layer sees all of them."""
        windows = [layer.window for layer in self.layers]
        return max(windows) if all(windows) else 0


@dataclass(frozen=True, slots=True)
class SharedExpertTensors:
    router: TensorInfo  # (1, hidden): the sigmoid of its product weights the expert
    gate: TensorInfo  # (shared ffn, hidden)
    up: TensorInfo
    down: TensorInfo  # (hidden, shared ffn)


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Tensors of one layer; optional ones are None where the architecture has none. Matrices are (rows, cols).

    A norm that has a bias is a LayerNorm, else it is an RMS norm.
    Where there is a router, gate, up and down hold the experts' matrices one below the other.
    """

    attention_norm: TensorInfo | None  # (hidden,)
    q: TensorInfo  # (num_heads * head_dim, hidden)
    k: TensorInfo  # (num_kv_heads * head_dim, hidden)
    v: TensorInfo
    o: TensorInfo  # (hidden, num_heads * head_dim)
    ffn_norm: TensorInfo | None
    gate: TensorInfo | None  # (ffn, hidden)
    up: TensorInfo
    down: TensorInfo  # (hidden, ffn)
    q_bias: TensorInfo | None = None
    k_bias: TensorInfo | None = None
    v_bias: TensorInfo | None = None
    q_norm: TensorInfo | None = None  # (head_dim,), or of all heads
    k_norm: TensorInfo | None = None
    post_attention_norm: TensorInfo | None = None  # before the residual add
    post_ffn_norm: TensorInfo | None = None
    router: TensorInfo | None = None  # (experts, hidden)
    attention_norm_bias: TensorInfo | None = None
    ffn_norm_bias: TensorInfo | None = None
    o_bias: TensorInfo | None = None
    sinks: TensorInfo | None = (
        None  # (num_heads,): a score that takes part in the softmax and has no value
    )
    router_bias: TensorInfo | None = None  # (experts,)
    gate_bias: TensorInfo | None = None  # as many as `gate` has rows
    up_bias: TensorInfo | None = None
    down_bias: TensorInfo | None = None
    shared: SharedExpertTensors | None = None


@dataclass(frozen=True, slots=True)
class ModelTensors:
    token_embedding: TensorInfo  # (vocab, hidden)
    output_norm: TensorInfo
    output: TensorInfo  # the token embedding itself where the file ties them
    layers: tuple[LayerTensors, ...]
    output_norm_bias: TensorInfo | None = None
    output_bias: TensorInfo | None = None  # (vocab,)
    positions: TensorInfo | None = None  # (context, hidden): added to the embedding
    rope_factors: TensorInfo | None = None  # (rope_dim / 2,) divides the frequencies
    long_rope_factors: TensorInfo | None = (
        None  # instead, in contexts above `rope_original_context`
    )
    dense: tuple[TensorInfo, TensorInfo] | None = (
        None  # (inner, hidden) and (hidden, inner): what pooled states are multiplied by
    )


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open model: the file, what it is, and where its tensors lie."""

    file: GGUFFile
    spec: ModelSpec
    tensors: ModelTensors

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What lists and `show` tell beside the spec."""

    num_parameters: int
    quantization: str  # as Q4_K_M
    weight_bytes: int
