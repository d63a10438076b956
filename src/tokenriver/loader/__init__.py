"""From shards to training batches: one global order, any number of ranks, resumed anywhere."""
