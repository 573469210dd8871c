"""How a peer ends."""

import json
import os

import torch.distributed as dist


def report(result):
    """Rank 0 prints `result` as one line of JSON, and the process is left."""
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)  # a process group that is torn down in the wrong order hangs
