"""Collectives without a model: as FSDP calls them, in one group, on several streams, in CUDA graphs, with an abort."""
import torch
import torch.distributed as dist

SHARD = 3000  # elements; not a multiple of what a thread loads at once


def values(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def fsdp(evidence, device, steps: int = 10, layers: int = 3) -> None:
    """Each layer's parameters are gathered on one stream, its gradients reduced and scattered on another one, with the
    average that FSDP uses and with the factor before the sum that fully_shard uses for other divisors."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gathering, reducing = torch.cuda.Stream(), torch.cuda.Stream()
    shards = [values(7 * layer + rank, SHARD).to(device) for layer in range(layers)]
    operations = [dist.ReduceOp.AVG, dist.ReduceOp.SUM, dist._make_nccl_premul_sum(0.25)]
    for step in range(steps):
        for layer in range(layers):
            whole = torch.empty(ranks * SHARD, device=device)
            gathering.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(gathering):
                own = whole[rank * SHARD : (rank + 1) * SHARD]
                own.copy_(shards[layer])
                dist.all_gather_into_tensor(whole, own)
            torch.cuda.current_stream().wait_stream(gathering)
            gradient = whole * values(1000 * step + 10 * layer + rank, ranks * SHARD).to(device)
            evidence.sending(gradient, "ReduceScatter")
            reducing.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(reducing):
                shard = torch.empty(SHARD, device=device)
                dist.reduce_scatter_tensor(shard, gradient, op=operations[layer % 3])
                gradient.record_stream(reducing)
        torch.cuda.current_stream().wait_stream(reducing)
        evidence.result(shard)
        loss = torch.tensor([float(step + rank)], device=device)
        dist.all_reduce(loss)
        evidence.facts["steps"] += 1


def hsdp(evidence, device, steps: int = 10) -> None:
    """Gradients are reduced and scattered over one group, the shards all-reduced over another one."""
    ranks = dist.get_world_size()
    replicas = dist.new_group(list(range(ranks)), device_id=device)
    for step in range(steps):
        gradient = values(100 * step + dist.get_rank(), ranks * SHARD).to(device)
        shard = torch.empty(SHARD, device=device)
        evidence.sending(gradient, "ReduceScatter")
        dist.reduce_scatter_tensor(shard, gradient, op=dist.ReduceOp.AVG)
        evidence.sending(shard, "AllReduce", group="replicas")
        dist.all_reduce(shard, op=dist.ReduceOp.AVG, group=replicas)
        evidence.result(shard)
        evidence.facts["steps"] += 1


def coalesced(evidence, device, steps: int = 10, buffers: int = 5) -> None:
    """Several all-reduces in one group of NCCL's."""
    for step in range(steps):
        tensors = [values(100 * step + 10 * i + dist.get_rank(), SHARD + i).to(device) for i in range(buffers)]
        for tensor in tensors:
            evidence.sending(tensor, "AllReduce")
        with dist._coalescing_manager(device=device, async_ops=True) as works:
            for tensor in tensors:
                dist.all_reduce(tensor)
        works.wait()
        for tensor in tensors:
            evidence.result(tensor)
        evidence.facts["steps"] += 1


def streams(evidence, device, steps: int = 10) -> None:
    """All-reduces on two streams of the program's own and, asynchronous, on that of the process group."""
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(steps):
        tensors = [values(100 * step + 10 * i + dist.get_rank(), SHARD + i).to(device) for i in range(3)]
        for tensor in tensors:
            evidence.sending(tensor, "AllReduce")
        for side, tensor in zip(sides, tensors):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                dist.all_reduce(tensor)
        work = dist.all_reduce(tensors[2], async_op=True)
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        work.wait()
        for tensor in tensors:
            evidence.result(tensor)
        evidence.facts["steps"] += 1


def graph(evidence, device, replays: int = 10, buffers: int = 3) -> None:
    """A captured graph of all-reduces, replayed with other inputs each time."""
    tensors = [values(i, SHARD + i).to(device) for i in range(buffers)]
    for tensor in tensors:  # NCCL connects before anything is captured
        evidence.sending(tensor, "AllReduce")
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for replay in range(replays):
        for i, tensor in enumerate(tensors):
            tensor.copy_(values(100 * replay + 10 * i + dist.get_rank(), SHARD + i))
            evidence.sending(tensor, "AllReduce", replay=replay + 1)
        captured.replay()
        torch.cuda.synchronize()
        for tensor in tensors:
            evidence.result(tensor)


def abort(evidence, device, complete: int = 10) -> None:
    """The last all-reduce waits for a rank that never comes; then the process group is aborted."""
    for step in range(complete):
        tensor = values(10 * step + dist.get_rank(), SHARD).to(device)
        evidence.sending(tensor, "AllReduce")
        dist.all_reduce(tensor)
        evidence.result(tensor)
    if dist.get_rank() == 0:
        lonely = values(9999, SHARD).to(device)
        evidence.sending(lonely, "AllReduce")
        dist.all_reduce(lonely, async_op=True)
    dist.distributed_c10d._abort_process_group()
