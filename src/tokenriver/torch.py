"""PyTorch's side of the loader under the name `tokenriver.torch`; needs the extra `torch`."""

from tokenriver.errors import MissingDependencyError

try:
    from tokenriver.loader.document_masks import document_ids, document_mask, document_mask_mod
    from tokenriver.loader.torch import TensorBatch, TrainDataset, from_ids, to_device
except ImportError as error:
    raise MissingDependencyError("PyTorch is not installed: pip install 'tokenriver[torch]'") from error

__all__ = ["TensorBatch", "TrainDataset", "document_ids", "document_mask", "document_mask_mod", "from_ids", "to_device"]
