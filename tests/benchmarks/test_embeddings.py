"""The benchmark of embeddings, with few rows."""

from benchmarks import embeddings


def test_it_measures_memory_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "SHARD_ROWS", 1024)
    found = dict(embeddings.measure_memory(tmp_path, 2048))
    assert float(found["images of 8x8 pixels a second"].replace(",", "")) > 0
    titles = [row[0] for row in embeddings.measure_search(tmp_path, 1500, 8)]
    assert titles[-1] == "search in memory, 10" and len(titles) == 5
