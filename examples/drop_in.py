"""Training scripts of llm.c and Parameter Golf change over by their import line; the loop stays as it was.

python examples/drop_in.py 'data/edu_fineweb_train_*.bin'
"""

from __future__ import annotations

import sys

# llm.c's train_gpt2.py defines DistributedDataLoader itself, whose batches it then moves by x.to(device), as it can
# these. Instead of that class:
from tokenriver.llmc import DataLoader as DistributedDataLoader

# Parameter Golf's train_gpt.py defines these itself. Instead of those definitions:
from tokenriver.golf import DistributedTokenLoader  # isort: skip


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    pattern, batch, seq_len = sys.argv[1], 4, 64
    llmc_loader = DistributedDataLoader(pattern, batch, seq_len, 0, 1)
    for _ in range(2):
        x, y = llmc_loader.next_batch()
        print(f"llm.c: shard {llmc_loader.current_shard_idx}, x {x.shape}, first ids {x[0, :5]}, targets {y[0, :5]}")
    golf_loader = DistributedTokenLoader(pattern, 0, 1, None)  # a torch.device gives tensors, None NumPy arrays
    for _ in range(2):
        x, y = golf_loader.next_batch(batch * seq_len, seq_len, 1)
        print(f"golf: file {golf_loader.stream.file_idx}, x {x.shape}, first ids {x[0, :5]}, targets {y[0, :5]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
