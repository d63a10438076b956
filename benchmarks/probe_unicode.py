"""Compare both encoders of tokenizers over every code point in many neighbourhoods; run by hand after an update.

    PYTHONPATH=src python benchmarks/probe_unicode.py TOKENIZER...

Prints the code points on which gigatoken and the reference differ. Those that are suspects are expected (they go to
the reference); any other is a fault, and the exit code is 1.
"""

from __future__ import annotations

import sys

import numpy as np

from tokenriver import load_tokenizer
from tokenriver.tokenizers.base import as_text_batch
from tokenriver.tokenizers.checked import CheckedTokenizer

CONTEXTS = ("a{}b", "1{}2", " {}", "{} x", ".{}.", "\n{}\n", "{}{}", "a {}", "a{}{}b1{}{}2", "'{} ", "'l{} ", "'r{}")
CONTEXTS += ("é{}é", "一{}一", "  {}", " {}1", " {}a", "A{}", "{}'s", "{}\r\n")
BETWEEN = "\n;q "
AT_ONCE = 20_000


def probe(name: str) -> int:
    """Number of code points that differ without being suspects."""
    tokenizer = load_tokenizer(name)
    if not isinstance(tokenizer, CheckedTokenizer) or tokenizer.fast is None:
        print(f"{name}: no fast path to compare")
        return 0
    differing, faults = [], []
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(points), AT_ONCE):
        some = points[start : start + AT_ONCE]
        batch = as_text_batch([BETWEEN.join(CONTEXTS).replace("{}", chr(c)) for c in some])
        fast = tokenizer.fast.encode(batch, parallel=True)
        reference = tokenizer.reference_encode_batch(batch)
        unequal = [c for k, c in enumerate(some) if not np.array_equal(fast[k], reference[k])]
        differing += unequal
        finder = tokenizer.fast.suspects
        faults += [c for c in unequal if len(finder.positions(as_text_batch([chr(c)]).data)) == 0]
    print(f"{name}: {len(differing)} code points differ, {len(faults)} of them outside the suspects")
    print(" ".join(f"U+{c:04X}" for c in faults[:100]))
    return len(faults)


if __name__ == "__main__":
    sys.exit(1 if sum(probe(name) for name in sys.argv[1:]) else 0)
