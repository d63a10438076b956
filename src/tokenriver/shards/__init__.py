"""Token shards: the header, reading, writing, names and cuts, the manifest, and verification."""
