"""Object stores behind fsspec: URLs, listing, reading by ranges, uploading what is whole, and what goes wrong."""

from tokenriver.storage.paths import is_remote, is_url, shown, to_path

__all__ = ["is_remote", "is_url", "shown", "to_path"]
