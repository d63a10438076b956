"""PyTorch's side of the loader under the name `tokenriver.torch`; needs the extra `torch`."""

from tokenriver.loader.torch import TensorBatch, TrainDataset, to_device

__all__ = ["TensorBatch", "TrainDataset", "to_device"]
