"""From Python lists to the device without making either wait for the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def send(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return int64 `values` on `device`; the host goes on while they travel."""
    tensor = torch.tensor(values, dtype=torch.long)
    if device.type == "cuda":  # from pageable memory the copy would synchronise
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
