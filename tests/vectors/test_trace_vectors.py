# SPDX-License-Identifier: MIT
"""The trace against spec/trace/vectors: canonical text, the bytes of a file, the verdict on changed files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentbox.trace.canonical import NotCanonicalError, dumps, loads
from agentbox.trace.keys import KeyStore, PublicKey, read_public_key
from agentbox.trace.ledger import Ledger, Standing
from agentbox.trace.verdict import Trust, Verdict
from agentbox.trace.verify import verify
from tests.nodes import name, nodes
from tests.vectors import make_trace_vectors as making

VECTORS = making.VECTORS
CANONICAL = json.loads((VECTORS / "canonical.json").read_text(encoding="utf-8"))["vectors"]
CHAIN = json.loads((VECTORS / "chain.json").read_text(encoding="utf-8"))
VERDICTS = json.loads((VECTORS / "verdicts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", CANONICAL, ids=lambda vector: vector["name"])
def test_json_text_has_its_canonical_form_or_is_refused(vector: dict[str, Any]) -> None:
    def canonical() -> str:
        return dumps(loads(vector["input"].encode("utf-8")))

    if "error" not in vector:
        assert canonical() == vector["canonical"]
        assert dumps(loads(vector["canonical"].encode("utf-8"))) == vector["canonical"]
        return
    with pytest.raises(NotCanonicalError) as caught:
        canonical()
    assert caught.value.reason == vector["error"]


def test_records_become_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "again.jsonl"
    making.write(path, CHAIN["records"])
    assert path.read_bytes() == (VECTORS / "files" / CHAIN["file"]).read_bytes()


def verdict_id(vector: dict[str, Any]) -> str:
    conditions = [f"{name}={value}" for name, value in vector.items() if name in {"key", "explicit", "ledger_count"}]
    return " ".join([Path(vector["file"]).stem, *conditions])


def judge(vector: dict[str, Any], directory: Path) -> Verdict:
    ledger = Ledger(directory / "ledger.jsonl")
    if vector.get("ledger", True):
        count = vector.get("ledger_count", len(VERDICTS["heads"]))
        known = VERDICTS["heads"][count - 1]
        ledger.note(Standing(VERDICTS["run"], count, known["head"], sealed="ledger_count" not in vector))
    which = vector.get("key", "own")
    keys: tuple[PublicKey, ...] = ()
    if which != "none":
        pem = directory / "key.pem"
        pem.write_text(VERDICTS["keys"][which])
        keys = (read_public_key(pem),)
    trust = Trust(keys, ledger, explicit=vector.get("explicit", False))
    return verify(VECTORS / "files" / vector["file"], trust)


@pytest.mark.parametrize("vector", VERDICTS["verdicts"], ids=verdict_id)
def test_file_gets_its_verdict(vector: dict[str, Any], tmp_path: Path) -> None:
    verdict = judge(vector, tmp_path)
    assert (verdict.status, verdict.index) == (vector["status"], vector["index"]), verdict
    assert verdict.version == vector.get("version", 2 if vector["status"] != "not_a_trace" else verdict.version)


def test_every_file_of_the_vectors_is_judged() -> None:
    judged = {vector["file"] for vector in VERDICTS["verdicts"]}
    assert {path.name for path in (VECTORS / "files").iterdir()} - judged == {"other_run.jsonl"}


@pytest.mark.parametrize("node", nodes(), ids=name)
def test_node_writes_and_judges_the_same_files(node: str) -> None:
    script = Path(__file__).with_name("trace.mjs")
    done = subprocess.run([node, str(script), str(VECTORS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = f"{len(CHAIN['records'])} records, {len(CANONICAL)} canonical, {len(VERDICTS['verdicts'])} verdicts"
    assert done.stdout.strip() == counts


def test_key_of_the_vectors_is_stored_as_written(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    store.directory.mkdir(mode=0o700)
    store.signing_path.touch(mode=0o600)
    store.signing_path.write_text(making.OWN.pem())
    loaded = store.load()
    assert loaded == making.OWN
    assert loaded.public.pem() == VERDICTS["keys"]["own"]
