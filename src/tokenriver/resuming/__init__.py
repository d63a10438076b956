"""What lets work go on after a kill: a folder's lock, a log of what is finished, uploads, a swap in a store."""
