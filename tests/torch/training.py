"""A network of element-wise operations and its training under DDP. The stand-ins can do all that it asks of the device
(README.md)."""
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 4096
LAYERS = 3
NAN_RANK, NAN_STEP, NAN_ELEMENT = 1, 12, 777  # the case `nan`


class Layers(torch.nn.Module):
    """x * scale + shift, several times, and a branch that not every step uses."""

    def __init__(self):
        super().__init__()
        numbers = torch.Generator().manual_seed(1)

        def values(mean: float) -> torch.nn.Parameter:
            return torch.nn.Parameter(mean + 0.1 * torch.randn(WIDTH, generator=numbers))

        self.scales = torch.nn.ParameterList([values(1.0) for _ in range(LAYERS)])
        self.shifts = torch.nn.ParameterList([values(0.0) for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor, layers: int = LAYERS) -> torch.Tensor:
        for scale, shift in list(zip(self.scales, self.shifts))[:layers]:
            x = x * scale + shift
        return x


def save_buckets(evidence):
    """A communication hook that keeps each bucket as it is before the all-reduce, which is PyTorch's own."""

    def hook(process_group, bucket):
        buffer = bucket.buffer()
        evidence.sending(buffer, "AllReduce")
        work = dist.all_reduce(buffer, group=process_group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))

    return hook


def train(evidence, device, steps: int = 30, hook: bool = True, micro_batches: int = 1, fewer_layers: bool = False,
          nan: bool = False, **ddp_options) -> None:
    rank = dist.get_rank()
    layers = Layers().to(device)
    for parameter in layers.parameters():  # what init_sync would do in one broadcast, after joining them on the device
        dist.broadcast(parameter.data, 0)
    # With a cap of 40 KiB the third parameter of 16 KiB fills a bucket.
    model = DistributedDataParallel(layers, device_ids=[device.index], bucket_cap_mb=40 / 1024, init_sync=False,
                                    **ddp_options)
    if hook:
        model.register_comm_hook(None, save_buckets(evidence))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False, fused=False)
    numbers = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        loss = 0.0
        for micro_batch in range(micro_batches):
            inputs = torch.randn(WIDTH, generator=numbers)
            if nan and (rank, step) == (NAN_RANK, NAN_STEP):
                inputs[NAN_ELEMENT] = float("nan")
            targets = inputs * 0.5 + 0.1 * torch.randn(WIDTH, generator=numbers)
            used = LAYERS - 1 if fewer_layers and (step + rank) % 3 == 0 else LAYERS
            last = micro_batch == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                output = model(inputs.to(device), used)
                # Half the squared distance, without a sum on the device: its gradient is the distance itself.
                distance = output - targets.to(device)
                loss += 0.5 * float((distance.detach().cpu().double() ** 2).sum()) / micro_batches
                output.backward(distance.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        evidence.loss(loss)
        shared = torch.tensor([loss], device=device)
        dist.all_reduce(shared)
        evidence.result(shared)
        evidence.facts["steps"] += 1
    for parameter in model.parameters():
        evidence.result(parameter)
