"""Drop-in for Parameter Golf's data functions, with its names and its numbers."""

from __future__ import annotations

from tokenriver.bpb.golf import build_sentencepiece_luts, eval_bpb, eval_val

__all__ = ["build_sentencepiece_luts", "eval_bpb", "eval_val"]
