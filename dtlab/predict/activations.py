"""Activations: the bytes that one transformer layer saves for its backward pass.

    tensors of sbh elements                 bytes each   divided among t ranks
    inputs of the two norms                      4        no; by t with sequence parallelism
    inputs of attention and of the MLP           4        the same
    two dropout masks                            2        the same; none without dropout
    Q, K, V, and attention's result              8        by t
    inside the MLP, of width 4h                 16        by t
    attention matrices, as/h as many elements
    softmax, its dropout's mask, its result      5        by t; 2 without dropout; 0 if fused

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 4 and Table 2: sequence s, microbatch b, hidden size h, heads a, t tensor-parallel ranks.
Elements have 16 bits, and masks one byte per element; CPU kernels save masks of two bytes.
"""

from __future__ import annotations

from typing import Literal

from dtlab.predict.units import check_bytes, check_count

__all__ = [
    "Recompute",
    "activation_bytes",
    "activation_pieces",
    "first_stage_activation_bytes",
]

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
    sequence parallelism all of it is divided by t. "selective" recomputes the attention matrices
    and so drops the term with a, and so does `fused_attention`, which never stores them. "full"
    saves 2sbh, the layer's input, whole on every rank. Without dropout 34 and 5 become 32 and 2.
    Table 2 of Korthikanti et al. 2022.
    Raises: ValueError for counts below 1, heads that do not divide the hidden size, tensor ranks
    that do not divide the heads or, with sequence parallelism, the sequence.
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
    if recompute == "full":
        return {"input of the layer": 2 * s * b * h}
    outside = t if sequence_parallel else 1  # ranks that divide the norms' inputs
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

    `layer_bytes` is for one layer and one microbatch. The first stage has L/p layers and p
    microbatches in flight: the bytes of L layers, for any p. With m = `num_chunks` > 1 parts of
    the model on each stage (interleaved), multiply by 1 + (p-1)/(pm). The formula does not hold
    with fewer microbatches than that, and excludes embedding and output layer.
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
