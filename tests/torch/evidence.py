"""What a rank of a test knows by itself: the buffers that it gave to NCCL, the losses, the parameters' exact bits."""
import hashlib
import json
import os
import pathlib

import numpy as np
import torch


class Evidence:
    """Written by one rank: RANK.json with the numbers, RANK.npz with the buffers in the order of the calls."""

    def __init__(self, folder: str, rank: int):
        self.folder = pathlib.Path(folder)
        self.rank = rank
        self.facts = {"losses": [], "sent": [], "results": [], "steps": 0}
        self.buffers = {}

    def sending(self, buffer: torch.Tensor, function: str, group: str = "world", replay: int = 0) -> None:
        """Call it right before the collective: the copy waits for what the current stream does with the buffer."""
        self.add(buffer.detach().cpu().numpy().astype(np.float64), function, group, replay)

    def add(self, values: np.ndarray, function: str, group: str = "world", replay: int = 0) -> None:
        finite = np.isfinite(values)
        self.facts["sent"].append(
            {
                "function": function,
                "group": group,
                "replay": replay,
                "step": self.facts["steps"],
                "count": int(values.size),
                "sum_squares": float(np.sum(values[finite] ** 2)),
                "max_abs": float(np.max(np.abs(values[finite]), initial=0.0)),
                "nan": int(np.isnan(values).sum()),
                "first_nonfinite": None if finite.all() else int(np.argmin(finite)),
            }
        )
        self.buffers[f"{len(self.facts['sent']) - 1:06d}"] = values.astype(np.float32)

    def result(self, tensor: torch.Tensor) -> None:
        """What a collective left, as a hash: equal runs leave equal bits."""
        bits = tensor.detach().cpu().contiguous().numpy().tobytes()
        self.facts["results"].append(hashlib.sha256(bits).hexdigest()[:16])

    def loss(self, value: float) -> None:
        self.facts["losses"].append(float(value).hex())

    def write(self) -> None:
        np.savez(self.folder / f"{self.rank}.npz", **self.buffers)
        text = self.folder / f"{self.rank}.json"
        text.with_suffix(".part").write_text(json.dumps(self.facts))
        os.replace(text.with_suffix(".part"), text)
