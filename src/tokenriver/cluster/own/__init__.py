"""A Ray cluster of this machine alone, for one command: begun with the processes that its tasks need, and no others."""
