"""What lets work go on after a kill: the lock of its directory, the log of what is finished, uploads."""
