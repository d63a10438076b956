"""README's Python runs as it stands, block after block in one process, on the documents that `make quickstart` leaves.

Changed is only what a test cannot have: the tokenizer that is fetched (byte instead), the size of the batches, and the
loop that goes on for ever.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs_on_what_quickstart_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    documents = Path("quickstart", "documents")
    documents.mkdir(parents=True)
    lines = [json.dumps({"id": str(k), "text": f"topic {k} of the language reference"}) for k in range(300)]
    (documents / "language.jsonl").write_text("\n".join(lines))
    names: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("gpt2", "byte").replace("batch_size=16, seq_len=1024", "batch_size=2, seq_len=32")
        exec(code.replace("    ...\n", "    if batch.step == 3:\n        break\n"), names)
    assert names["summary"].documents == 300
    assert names["batch"].inputs.shape == (2, 32)
    assert names["state"]["step"] == 3
    assert capsys.readouterr().out.startswith(f"{names['summary'].tokens} {{'train': ")
