"""The costs of a transformer: parameters, floating-point operations, and saved activations.

    one layer                             parameters    FLOPs, forward, of Bs tokens
    Q, K, V and the output projection     4h^2 + 4h      8 Bsh^2
    QK^T, and its product with V                         4 Bs^2h
    MLP of width 4h                       8h^2 + 5h     16 Bsh^2
    two norms                                    4h
    whole model
    token embedding = output layer             Vh        2 BshV
    position embedding                         sh

B is the number of sequences, s their length in tokens, h the hidden size, V the vocabulary size.
Backward takes twice the operations of forward. A multiplication and an addition are two
operations; attention is counted without the causal mask. Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", equations (2) and (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtlab.predict.units import check_bytes, check_count

__all__ = [
    "Recompute",
    "Transformer",
    "activation_bytes",
    "activation_pieces",
    "first_stage_activation_bytes",
    "gpt_flops",
    "gpt_parameters",
]


def gpt_parameters(
    num_layers: int, hidden_size: int, vocab_size: int, sequence_length: int
) -> int:
    """Return the parameters of a GPT of L layers: 12Lh^2 (1 + 13/(12h) + (V + s)/(12Lh)).

    The norm before the output layer has 2h more, which the equation omits.
    Narayanan et al. 2021, equation (2).
    Raises: ValueError for counts below 1.
    """
    layers, h = check_count("num_layers", num_layers), check_count("hidden_size", hidden_size)
    embeddings = check_count("vocab_size", vocab_size)
    embeddings += check_count("sequence_length", sequence_length)
    return layers * (12 * h * h + 13 * h) + embeddings * h


def gpt_flops(
    num_layers: int,
    hidden_size: int,
    vocab_size: int,
    sequence_length: int,
    batch_size: int,
    recompute: Literal["none", "selective", "selective_as_printed", "full"] = "none",
) -> int:
    """Return the floating-point operations of a step on `batch_size` sequences, with L layers.

    none                   72BLsh^2 (1 + s/(6h) + V/(12hL))    the model's own operations
    selective              72BLsh^2 (1 + 2s/(9h) + V/(12hL))   recompute attention's matrices
    selective_as_printed   72BLsh^2 (1 + s/(3h) + V/(12hL))
    full                   96BLsh^2 (1 + s/(6h) + V/(16hL))    recompute every layer's forward

    Korthikanti et al. 2022 print the third formula, but state that each layer recomputes 4Bs^2h,
    which gives the second. The last is Narayanan et al. 2021, equation (3).
    Raises: ValueError for counts below 1, or an unknown `recompute`.
    """
    layers, h = check_count("num_layers", num_layers), check_count("hidden_size", hidden_size)
    vocabulary = check_count("vocab_size", vocab_size)
    s = check_count("sequence_length", sequence_length)
    tokens = check_count("batch_size", batch_size) * s
    linear, attention, head = 24 * h * h * layers, 4 * s * h * layers, 2 * h * vocabulary
    recomputed = {
        "none": 0,
        "selective": attention,
        "selective_as_printed": 3 * attention,
        "full": linear + attention,
    }
    if recompute not in recomputed:
        names = ", ".join(recomputed)
        raise ValueError(f"recompute must be one of {names}, not {recompute!r}.")
    return tokens * (3 * (linear + attention + head) + recomputed[recompute])


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer.

    `gated` means built like Llama: an MLP of three matrices (SwiGLU), no biases, rotary positions,
    and a separate output head. Otherwise it is built like GPT-2: two matrices, biases, learned
    positions, and a head that shares the token embedding. `mlp_size` is 4 x hidden_size if it is
    None, and `kv_heads` is `num_heads`. Fused attention (FlashAttention) stores no attention
    matrices, and skips the half that the causal mask hides.
    Raises: ValueError for sizes below 1, or unless `num_heads` divides `hidden_size` and
    `kv_heads` divides `num_heads`.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    sequence_length: int
    mlp_size: int | None = None
    kv_heads: int | None = None
    gated: bool = False
    fused_attention: bool = True
    dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "vocab_size", "sequence_length"):
            check_count(name, getattr(self, name))
        if self.hidden_size % self.num_heads or self.num_heads % self.keys:
            raise ValueError(
                f"num_heads={self.num_heads} must divide hidden_size={self.hidden_size}, and "
                f"kv_heads={self.keys} must divide num_heads."
            )

    @property
    def mlp(self) -> int:
        """Width of the MLP."""
        return self.mlp_size or 4 * self.hidden_size

    @property
    def keys(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.num_heads

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        h = self.hidden_size
        return (
            2 * h * h + 2 * h * h * self.keys // self.num_heads + (2 + self.gated) * h * self.mlp
        )

    @property
    def layer_params(self) -> int:
        """Parameters of one layer: 12h^2 + 13h for a GPT."""
        h = self.hidden_size
        biases = 0 if self.gated else 4 * h + 5 * h
        return self.layer_weights + biases + (2 * h if self.gated else 4 * h)

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding; the output head has as many."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All parameters: for a GPT, equation (2) of Narayanan et al. 2021."""
        positions = 0 if self.gated else self.sequence_length * self.hidden_size
        embeddings = (2 if self.gated else 1) * self.embedding_params
        return self.num_layers * self.layer_params + embeddings + positions

    @property
    def attention_flops(self) -> float:
        """FLOPs per token and layer of the two products with the attention matrix, forward."""
        return (2 if self.fused_attention else 4) * self.sequence_length * self.hidden_size

    @property
    def layer_flops(self) -> float:
        """FLOPs per token of one layer, forward."""
        return 2 * self.layer_weights + self.attention_flops

    @property
    def head_flops(self) -> float:
        """FLOPs per token of the output head, forward."""
        return 2 * self.embedding_params

    def step_flops(self, batch: int) -> float:
        """Return the FLOPs of a step without recomputation: three times those of forward."""
        tokens = batch * self.sequence_length
        return 3 * tokens * (self.num_layers * self.layer_flops + self.head_flops)


# Activations: the bytes that a layer keeps for its backward pass --------------------------------
#
#     tensors of sbh elements                 bytes each   divided among t ranks
#     inputs of the two norms                      4        no; by t with sequence parallelism
#     inputs of attention and of the MLP           4        the same
#     two dropout masks                            2        the same; none without dropout
#     Q, K, V, and attention's result              8        by t
#     inside the MLP, of width 4h                 16        by t
#     attention matrices, as/h as many elements
#     softmax, its dropout's mask, its result      5        by t; 2 without dropout; 0 if fused
#
# Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
# section 4 and Table 2: sequence s, microbatch b, hidden size h, heads a, t tensor-parallel ranks.
# Elements have 16 bits, and masks one byte per element; CPU kernels save masks of two bytes.

Recompute = Literal["none", "selective", "full"]


def activation_bytes(
    sequence_length: int,
    microbatch_size: int,
    hidden_size: int,
    num_heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    dropout: bool = True,
    fused_attention: bool = False,
    *,
    kv_heads: int | None = None,
    mlp_size: int | None = None,
    gated: bool = False,
) -> int:
    """Return the bytes that one transformer layer saves for one microbatch's backward, per rank.

    Without recomputation: sbh(34 + 5as/h); with tensor parallelism sbh(10 + 24/t + 5as/(ht)); with
    sequence parallelism all of it is divided by t. "selective" recomputes the attention matrices,
    and `fused_attention` never stores them; both drop the term with a. "full" saves the layer's
    input: 2sbh, whole on every rank, or with sequence parallelism 2sbh/t, because a rank has the
    input of its own tokens only. Without dropout 34 and 5 become 32 and 2. Table 2 of Korthikanti
    et al. 2022, whose row of full recomputation has no sequence parallelism; the symbols are
    explained above.
    Raises: ValueError for counts below 1, an unknown `recompute`, heads that do not divide the
    hidden size, tensor ranks that do not divide the heads or, with sequence parallelism, the
    sequence.
    """
    pieces = activation_pieces(
        sequence_length, microbatch_size, hidden_size, num_heads, tensor_parallel,
        sequence_parallel, recompute, dropout, fused_attention,
        kv_heads=kv_heads, mlp_size=mlp_size, gated=gated,
    )  # fmt: skip
    return sum(pieces.values())


def activation_pieces(
    sequence_length: int,
    microbatch_size: int,
    hidden_size: int,
    num_heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    dropout: bool = True,
    fused_attention: bool = False,
    *,
    kv_heads: int | None = None,
    mlp_size: int | None = None,
    gated: bool = False,
) -> dict[str, int]:
    """Return the bytes of `activation_bytes` by purpose, without entries of 0 bytes.

    Raises: ValueError as `activation_bytes` does.
    """
    s = check_count("sequence_length", sequence_length)
    b = check_count("microbatch_size", microbatch_size)
    h, a = check_count("hidden_size", hidden_size), check_count("num_heads", num_heads)
    t = check_count("tensor_parallel", tensor_parallel)
    keys = a if kv_heads is None else check_count("kv_heads", kv_heads)
    width = 4 * h if mlp_size is None else check_count("mlp_size", mlp_size)
    _check_divides("num_heads", a, "hidden_size", h)
    _check_divides("kv_heads", keys, "num_heads", a)
    _check_divides("tensor_parallel", t, "num_heads", a)
    if sequence_parallel:
        _check_divides("tensor_parallel", t, "sequence_length", s)
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute must be 'none', 'selective' or 'full', not {recompute!r}.")
    outside = t if sequence_parallel else 1  # ranks that divide the inputs of layer and norms
    if recompute == "full":
        return {"input of the layer": 2 * s * b * h // outside}
    has_matrices = not fused_attention and recompute == "none"
    pieces = {
        "inputs of the norms": 4 * s * b * h // outside,
        "inputs of attention and MLP": 4 * s * b * h // outside,
        "Q, K, V, attention's result": 4 * s * b * h * (a + keys) // a // t,
        "inside the MLP": (8 if gated else 4) * s * b * width // t,
        "dropout masks": 2 * s * b * h // outside if dropout else 0,
        "attention matrices": (5 if dropout else 2) * a * s * s * b // t if has_matrices else 0,
    }
    return {name: size for name, size in pieces.items() if size}


def first_stage_activation_bytes(
    layer_bytes: float, num_layers: int, num_stages: int = 1, num_chunks: int = 1
) -> float:
    """Return the bytes that the first of `num_stages` pipeline stages saves under 1F1B.

    `layer_bytes` is for one layer and one microbatch. The first of p stages has L/p of L layers
    and p microbatches in flight: the bytes of L layers, for any p. With m = `num_chunks` > 1 parts
    of the model on each stage (interleaved), multiply by 1 + (p-1)/(pm). The formula does not hold
    for a step with fewer microbatches, and excludes embedding and output layer.
    Korthikanti et al. 2022, section 4.2.3.
    Raises: ValueError for counts below 1, or layers that cannot be divided into these chunks.
    """
    check_bytes("layer_bytes", layer_bytes)
    p, m = check_count("num_stages", num_stages), check_count("num_chunks", num_chunks)
    layers = check_count("num_layers", num_layers)
    _check_divides("num_stages * num_chunks", p * m, "num_layers", layers)
    all_layers = layer_bytes * layers
    return all_layers if m == 1 else all_layers * (p * m + p - 1) / (p * m)


def _check_divides(part_name: str, part: int, whole_name: str, whole: int) -> None:
    if whole % part:
        raise ValueError(
            f"{part_name} must divide {whole_name}, but {part} does not divide {whole}."
        )
