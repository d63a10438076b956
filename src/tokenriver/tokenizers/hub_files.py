"""A tokenizer's file from the Hugging Face Hub or its cache, with one clear error where neither has it."""

from __future__ import annotations

from pathlib import Path

from tokenriver.errors import TokenizerError

__all__ = ["fetch_tokenizer_file"]

_VOCABULARIES = ("tokenizer.json", "tokenizer.model")
_PROBE_SECONDS = 10
_BESIDE = ("generation_config.json", "tokenizer_config.json")


def fetch_tokenizer_file(repo_id: str) -> Path:
    """Path of the repository's tokenizer.json (else tokenizer.model), the files that name its separator beside it.

    Raises TokenizerError saying which local file to give where the Hub cannot be reached or has neither.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    unreachable = _why_unreachable(repo_id)
    offline = unreachable is not None
    failure: Exception | None = None
    for vocabulary in _VOCABULARIES:
        try:
            path = Path(hf_hub_download(repo_id, vocabulary, local_files_only=offline))
        except EntryNotFoundError as error:
            failure = unreachable or error
            continue
        except Exception as error:
            failure = error
            break
        for name in _BESIDE:
            try:
                hf_hub_download(repo_id, name, local_files_only=offline)
            except EntryNotFoundError:
                continue
            except Exception as error:
                raise TokenizerError(f"{repo_id}: {name} cannot be fetched from the Hub: {_line(error)}") from error
        return path
    from tokenriver.tokenizers.ranks import ENCODINGS

    names = "" if "/" in repo_id else f"; names of tokenizers are byte, byte260, {', '.join(ENCODINGS)}"
    raise TokenizerError(
        f"{repo_id}: no such local file, and not to be had from the Hugging Face Hub ({_line(failure)}); "
        f"without a network give the path of its tokenizer.json (or tokenizer.model){names}"
    ) from failure


def _why_unreachable(repo_id: str) -> Exception | None:
    """The error when the Hub does not answer one short question, else None; the cache is used alone then.

    A download would try five times, for half a minute, before it says the same.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(repo_id, _VOCABULARIES[0]), timeout=_PROBE_SECONDS)
    except HfHubHTTPError:
        return None  # it answered; what its answer means is for the download to say
    except Exception as error:
        return error
    return None


def _line(error: Exception | None) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
