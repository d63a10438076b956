"""Best fit on real web text: the rows are full, and nothing is discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenriver

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_of_web_text_are_full_and_nothing_is_discarded(shared: Path, tmp_path: Path) -> None:
    docs = [shared / "data" / "docs" / f"{name}.jsonl.gz" for name in ("fineweb_sample", "dclm_annotated")]
    summary = tokenriver.build(docs, tokenizer=shared / "data" / "gpt2", out=tmp_path, split="train", dataset="web")
    for order in ("sequential", "shuffled"):
        loader = tokenriver.TrainLoader(
            summary.directory, batch_size=4, seq_len=2048, order=order, packing="best-fit", drop_last=False
        )
        ledger = loader.ledger()
        assert ledger["utilisation"] >= 0.995
        assert ledger["cropped"] == ledger["dropped"] == 0
        assert ledger["trained"] + ledger["padded"] == ledger["tokens"] == summary.tokens
        assert ledger["padded"] <= ledger["rows"]
