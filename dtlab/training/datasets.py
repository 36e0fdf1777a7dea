"""Data sets without downloads: handwritten digits, and the source of Python's standard library."""

from __future__ import annotations

import gzip
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from dtlab.errors import DtlabError

__all__ = ["Split", "batches", "decode", "digits", "standard_library"]


class Split(NamedTuple):
    """Training and test data, with no overlap between them."""

    train: TensorDataset
    test: TensorDataset


# Digits -------------------------------------------------------------------------------


def digits(shifts: bool = True, test_fraction: float = 0.2, seed: int = 0) -> Split:
    """Load the 1797 handwritten digits of scikit-learn, with their one-pixel shifts.

    Each sample is an image, float32 of shape [1, 8, 8] from 0 to 1, and a label, int64. With
    `shifts` each training image occurs nine times: unchanged, and moved by one pixel in eight
    directions, padded with zeros. That makes 12942 training images; the 359 test images are
    unchanged. `seed` determines which images are for testing, the same on every machine.

    Raises: ValueError if `test_fraction` leaves no training or no test samples; DtlabError
    without scikit-learn.
    """
    table = torch.from_numpy(_table_of_digits())
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    num_test = _num_test(len(images), test_fraction)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, train = order[:num_test], order[num_test:]
    # Shift after the split: a shifted copy of a test image would make the test too easy.
    moved = _shifted(images[train]) if shifts else [images[train]]
    return Split(
        TensorDataset(torch.cat(moved), labels[train].repeat(len(moved))),
        TensorDataset(images[test], labels[test]),
    )


def _table_of_digits() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return one row per image: 64 pixels from 0 to 16, and the label.

    Importing scikit-learn takes a second on every rank; reading its file takes milliseconds.
    """
    spec = importlib.util.find_spec("sklearn")
    places = spec.submodule_search_locations if spec else None
    file = Path(places[0], "datasets", "data", "digits.csv.gz") if places else Path()
    if not file.is_file():  # another release of scikit-learn may have the file elsewhere
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DtlabError(
                "the handwritten digits come with scikit-learn, which is not installed here. To "
                "install it: pip install scikit-learn"
            ) from error

        images, labels = load_digits(return_X_y=True)
        return np.column_stack([images, labels]).astype(np.float32)
    with gzip.open(file, "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.float32)


def _shifted(images: Tensor) -> list[Tensor]:
    """Return the images [n, 1, 8, 8] unchanged, and moved by one pixel in eight directions."""
    padded = F.pad(images, (1, 1, 1, 1))
    moves = sorted(((y, x) for y in range(3) for x in range(3)), key=lambda move: move != (1, 1))
    return [padded[:, :, y : y + 8, x : x + 8] for y, x in moves]


# Text ---------------------------------------------------------------------------------


def standard_library(
    context: int = 64, max_bytes: int = 1_000_000, test_fraction: float = 0.1
) -> Split:
    """Load the source of Python's standard library, cut into windows for a language model.

    A token is a byte, so the vocabulary has 256 entries. Each sample is `context` tokens, and the
    tokens that follow each of them: two int64 tensors of shape [context]. Windows do not overlap.
    The modules are sorted by name and cut after `max_bytes`; the last windows are for testing. The
    text differs between versions of Python, but not between machines.

    Raises: ValueError for a context below 1, or too little text for training and testing.
    """
    if context < 1:
        raise ValueError(f"A window needs at least one token, but context is {context}.")
    text = bytearray(_source_text(max_bytes))
    num_windows = (len(text) - 1) // context
    num_test = _num_test(num_windows, test_fraction)
    tokens = torch.frombuffer(text, dtype=torch.uint8).long()
    end = num_windows * context
    inputs, targets = tokens[:end].view(-1, context), tokens[1 : end + 1].view(-1, context)
    first_test = num_windows - num_test
    return Split(
        TensorDataset(inputs[:first_test], targets[:first_test]),
        TensorDataset(inputs[first_test:], targets[first_test:]),
    )


def _source_text(max_bytes: int) -> bytes:
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(text) >= max_bytes:
            break
        if file.stem in sys.stdlib_module_names:  # excludes other files of an installation
            text += file.read_bytes()
    return bytes(text[: max(0, max_bytes)])


def decode(tokens: Tensor) -> str:
    """Decode tokens of `standard_library`, of any shape, to text."""
    return bytes(tokens.flatten().tolist()).decode("utf-8", errors="replace")


# Both ---------------------------------------------------------------------------------


def batches(
    data: TensorDataset,
    batch_size: int,
    *,
    sampler: Iterable[int] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of `data`; the last may be smaller, and no sample is dropped.

    The order is that of `sampler` (such as a DistributedSampler), or shuffled by `generator`, or
    the order of the data. Whole tensors are indexed, which is about ten times faster than a
    DataLoader that fetches sample by sample.

    Raises: ValueError for a batch size below 1, or both a sampler and a generator.
    """
    if batch_size < 1:
        raise ValueError(f"A batch needs at least one sample, but batch_size is {batch_size}.")
    if sampler is not None and generator is not None:
        raise ValueError(
            "batches got a sampler and a generator, but a sampler already determines the order. "
            "Pass one of the two."
        )
    if sampler is not None:
        order = torch.tensor(list(sampler), dtype=torch.long)
    elif generator is not None:
        order = torch.randperm(len(data), generator=generator)
    else:
        order = torch.arange(len(data))
    return (data[part] for part in torch.split(order, batch_size) if len(part))


def _num_test(count: int, fraction: float) -> int:
    num_test = round(count * fraction)
    if not 0 < num_test < count:
        raise ValueError(
            f"Of {count} samples, test_fraction={fraction} leaves {count - num_test} to train on "
            f"and {num_test} to test on. Both need at least one."
        )
    return num_test
