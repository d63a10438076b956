"""Masks for attention within documents, beside a naive one, and packed batches on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from packing_cases import write_documents

from tokenriver import TrainLoader

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")


def test_the_mask_allows_what_is_earlier_in_the_same_document(tmp_path: Path) -> None:
    from tokenriver.loader.document_masks import position_ids
    from tokenriver.torch import document_mask, document_mask_mod, to_device

    paths, _ = write_documents(tmp_path, [3, 5, 1, 20, 4, 2, 2])
    words = {"batch_size": 2, "seq_len": 7, "packing": "best-fit", "separator": 0, "epochs": 1, "drop_last": False}
    plain = list(TrainLoader(paths, **words))
    batches = list(to_device(TrainLoader(paths, **words), "cpu"))
    assert len(batches) == len(plain)
    for batch, same in zip(batches, plain, strict=True):
        assert batch.position_ids is not None
        assert np.array_equal(batch.inputs.numpy(), same.inputs)
        assert np.array_equal(batch.cu_seqlens.numpy(), same.cu_seqlens)
        assert (batch.mask is None) == (same.mask is None)
        for lengths in (batch.cu_seqlens, torch.cat([batch.cu_seqlens, batch.cu_seqlens[-1:]])):
            assert torch.equal(position_ids(lengths, batch.inputs.shape), batch.position_ids)
        mask, mod = document_mask(batch.position_ids), document_mask_mod(batch.position_ids)
        assert mask.shape == (2, 1, 7, 7)
        document = np.searchsorted(same.cu_seqlens, np.arange(14), "right").reshape(2, 7)
        for b, q, k in np.ndindex(2, 7, 7):
            allowed = k <= q and document[b, q] == document[b, k]
            assert bool(mask[b, 0, q, k]) == allowed
            index = [torch.tensor(i) for i in (b, 0, q, k)]
            assert bool(mod(*index)) == allowed


def test_cropped_documents_have_their_own_next_token_as_target_also_as_tensors(tmp_path: Path) -> None:
    from tokenriver.torch import to_device

    paths, _ = write_documents(tmp_path, [9] * 6)
    words = {"batch_size": 1, "seq_len": 8, "packing": "bos-aligned", "max_doc_len": 3, "separator": 0, "epochs": 1}
    loader = TrainLoader(paths, order="sequential", **words)
    batch = next(iter(to_device(loader, "cpu")))
    assert batch.inputs.tolist() == [[0, 2, 3, 0, 11, 12, 0, 20]]
    assert batch.targets.tolist() == [[2, 3, 4, 11, 12, 13, 20, 21]]
    assert batch.cu_seqlens is not None
    assert batch.cu_seqlens.tolist() == [0, 3, 6, 8]
    assert loader.ledger()["cropped"] == 2 * (5 + 5 + 6)
