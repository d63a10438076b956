"""From documents to finished shards: where the cuts fall, encoding, writing, and going on after an interruption.

The function is `tokenriver.build`; the folder has another name because a module would hide it.
"""
