"""A tokenizer's file from the Hugging Face Hub or its cache, with one clear error where neither has it."""

from __future__ import annotations

from pathlib import Path

from tokenriver.errors import TokenizerError

__all__ = ["fetch_tokenizer_file"]

_VOCABULARIES = ("tokenizer.json", "tokenizer.model")
_BESIDE = ("generation_config.json", "tokenizer_config.json")


def fetch_tokenizer_file(repo_id: str) -> Path:
    """Path of the repository's tokenizer.json (else tokenizer.model), the files that name its separator beside it.

    Raises TokenizerError saying which local file to give where the Hub cannot be reached or has neither.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    failure: Exception | None = None
    for vocabulary in _VOCABULARIES:
        try:
            path = Path(hf_hub_download(repo_id, vocabulary))
        except LocalEntryNotFoundError as error:
            failure = error
            break
        except EntryNotFoundError as error:
            failure = error
            continue
        except Exception as error:
            failure = error
            break
        for name in _BESIDE:
            try:
                hf_hub_download(repo_id, name)
            except EntryNotFoundError:
                continue
            except Exception as error:
                raise TokenizerError(f"{repo_id}: {name} cannot be fetched from the Hub: {_line(error)}") from error
        return path
    raise TokenizerError(
        f"{repo_id}: no such local file, and not to be had from the Hugging Face Hub ({_line(failure)}); "
        f"without a network give the path of its tokenizer.json (or tokenizer.model)"
    ) from failure


def _line(error: Exception | None) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
