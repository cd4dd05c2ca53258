"""Who samples: settled once, when a model is loaded, by the device of its logits."""

from __future__ import annotations

import torch

from pagemesh.kernels.dispatch import backend_for
from pagemesh.sampling.samples import Sampler
from pagemesh.sampling.transfers import Transfers


def make_sampler(vocab_size: int, device: torch.device, transfers: Transfers) -> Sampler:
    """The host samples for the CPU, a CUDA device by itself; on the stream of the transfers."""
    match backend_for("sampling", device):
        case "cpu" | "reference":
            from pagemesh.sampling.sampler import HostSampler

            return HostSampler()
        case "cuda":
            from pagemesh.sampling.device_sampler import DeviceSampler

            return DeviceSampler(vocab_size, device, transfers)
