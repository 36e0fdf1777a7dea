"""Parameters of a GPT, and floating-point operations of one training step.

    one layer                             parameters    FLOPs, forward, of Bs tokens
    Q, K, V and the output projection     4h^2 + 4h      8 Bsh^2
    QK^T, and its product with V                         4 Bs^2h
    MLP of width 4h                       8h^2 + 5h     16 Bsh^2
    two norms                                    4h
    whole model
    token embedding = output layer             Vh        2 BshV
    position embedding                         sh

Backward takes twice the operations of forward. A multiplication and an addition are two
operations; attention is counted without the causal mask. Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", equations (2) and (3).
"""

from __future__ import annotations

from typing import Literal

from dtlab.predict.units import check_count

__all__ = ["gpt_flops", "gpt_parameters"]


def gpt_parameters(
    num_layers: int, hidden_size: int, vocab_size: int, sequence_length: int
) -> int:
    """Return the parameters of a GPT: 12lh^2 (1 + 13/(12h) + (V + s)/(12lh)).

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
    """Return the floating-point operations of a step on `batch_size` sequences.

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
