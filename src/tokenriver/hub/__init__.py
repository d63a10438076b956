"""Data sets to and from the Hugging Face Hub: each file is checked before it gets its name, the manifest is last."""
