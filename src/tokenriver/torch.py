"""PyTorch's side of the loader under the name `tokenriver.torch`; needs the extra `torch`."""

from tokenriver.loader.torch import (
    TensorBatch,
    TrainDataset,
    document_ids,
    document_mask,
    document_mask_mod,
    to_device,
)

__all__ = ["TensorBatch", "TrainDataset", "document_ids", "document_mask", "document_mask_mod", "to_device"]
