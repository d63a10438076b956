"""Shards of object stores kept on this machine: fetched ahead, verified, shared by all processes, evicted."""
