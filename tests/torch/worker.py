#!/usr/bin/env python3
"""One rank of one case, started by torchrun: worker.py CASE FOLDER. What it saw goes to FOLDER (evidence.py)."""
import os
import sys

import torch
import torch.distributed as dist

import calls
from evidence import Evidence
from training import train

CASES = {
    "ddp": lambda evidence, device: train(evidence, device, hook=False),
    "hook": train,
    "no_sync": lambda evidence, device: train(evidence, device, micro_batches=4),
    "unused": lambda evidence, device: train(evidence, device, fewer_layers=True, find_unused_parameters=True),
    "static_graph": lambda evidence, device: train(evidence, device, static_graph=True),
    "nan": lambda evidence, device: train(evidence, device, steps=20, nan=True),
    "fsdp": calls.fsdp,
    "hsdp": calls.hsdp,
    "coalesced": calls.coalesced,
    "streams": calls.streams,
    "graph": calls.graph,
    "abort": calls.abort,
}


def main() -> None:
    case, folder = sys.argv[1:3]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    evidence = Evidence(folder, dist.get_rank())
    CASES[case](evidence, device)
    torch.cuda.synchronize()
    evidence.write()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
